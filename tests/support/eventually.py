"""Waits for what happens outside of this task; never longer than its deadline."""

import asyncio
from collections.abc import Callable


async def eventually(true: Callable[[], object], seconds: float = 20) -> None:
    """Return as soon as the predicate holds; a TimeoutError at the deadline."""
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.002)
