#!/usr/bin/env bash
# Gets this machine ready to build and run the project's images without an image registry: installs and starts a Docker
# engine where none answers, and makes a Python base image out of the distribution's own packages.
#
#   deploy/docker-base.sh [TAG]        default: checkpoint-replicator/python-base:local
#
# Needs root and apt (Debian or Ubuntu); two minutes the first time, a moment later. The image takes over this
# machine's CA certificates and pip settings, so that a build reaches the same package index as this machine does;
# build with `--network host` for the same reason. An engine that this script started leaves its pid in
# /run/checkpoint-replicator-dockerd.pid: end it with `kill "$(cat /run/checkpoint-replicator-dockerd.pid)"`.
set -euo pipefail

tag=${1:-checkpoint-replicator/python-base:local}
pid_file=/run/checkpoint-replicator-dockerd.pid

missing=()
have() { command -v "$1" >/dev/null 2>&1; }
have dockerd || docker info >/dev/null 2>&1 || missing+=(docker.io iptables)
have docker-compose || docker compose version >/dev/null 2>&1 || missing+=(docker-compose)
have debootstrap || missing+=(debootstrap)
if ((${#missing[@]})); then
    echo "installing ${missing[*]}"
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y "${missing[@]}" >/dev/null
fi

if ! docker info >/dev/null 2>&1; then
    echo "starting a Docker engine"
    log=$(mktemp -t checkpoint-replicator-dockerd.XXXXXX.log)
    setsid dockerd >"$log" 2>&1 </dev/null &
    echo $! >"$pid_file"
    for ((attempt = 0; attempt < 120; attempt++)); do
        docker info >/dev/null 2>&1 && break
        sleep 0.5
    done
    docker info >/dev/null || { echo "the engine did not come up, see $log" >&2; exit 1; }
fi

if docker image inspect "$tag" >/dev/null 2>&1; then
    echo "$tag is there"
    exit 0
fi

# The mirror that this machine's apt uses: the first URI of its own sources.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -n 1)
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
root=$(mktemp -d -t checkpoint-replicator-base.XXXXXX)
trap 'rm -rf "$root"' EXIT
echo "making $tag from $suite"
debootstrap --variant=minbase --include=python3,python3-pip,python3-venv,ca-certificates "$suite" "$root/image" "$mirror" >/dev/null
bundle=/etc/ssl/certs/ca-certificates.crt
[[ -f $bundle ]] && install -m 0644 "$bundle" "$root/image$bundle"
[[ -f /etc/pip.conf ]] && install -m 0644 /etc/pip.conf "$root/image/etc/pip.conf"
ln -sf python3 "$root/image/usr/bin/python"
rm -rf "$root"/image/var/cache/apt/archives/*.deb "$root"/image/var/lib/apt/lists/*
tar -C "$root/image" -c . | docker import --change "ENV PIP_CERT=$bundle" --change 'CMD ["python3"]' - "$tag" >/dev/null
echo "$tag made"
