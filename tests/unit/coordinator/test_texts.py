from checkpoint_coordinator.texts import Texts


def test_a_record_is_put_into_texts_once_and_its_successor_anew() -> None:
    texts, made = Texts(), []

    def make() -> dict[str, str]:
        made.append(1)
        return {"made": str(len(made))}

    first, second = object(), object()
    assert texts.of("epoch", (first,), make) is texts.of("epoch", (first,), make)
    assert texts.of("epoch", (second,), make) == {"made": "2"}
    assert texts.of("epoch", (second, first), make) == {"made": "3"}


def test_what_nobody_asks_for_any_more_is_forgotten() -> None:
    texts, record = Texts(), object()
    texts.of("step:1.1", (record,), lambda: {"a": "1"})
    texts.forget()
    texts.of("epoch", (record,), lambda: {"b": "1"})
    texts.forget()
    assert texts.of("step:1.1", (record,), lambda: {"a": "2"}) == {"a": "2"}
    assert texts.of("epoch", (record,), lambda: {"b": "2"}) == {"b": "1"}
