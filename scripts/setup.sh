#!/usr/bin/env bash
# Creates .venv in the checkout and installs the package with everything its demo and tests need.
# Does nothing where that has been done since pyproject.toml, constraints.txt or what it runs last changed.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\033[1m%s\033[0m\n' "$*"; }

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3.13 python3.12 python3.11 python3.14 python3 python; do
    [ -n "$candidate" ] || continue
    # Running it is the only proof: version managers leave launchers for versions they do not have.
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  cat >&2 <<'EOF'
delta_orch needs Python 3.11 to 3.14 with the venv module, and found none.
  Debian, Ubuntu:  sudo apt-get install python3 python3-venv
  Fedora:          sudo dnf install python3.13
  macOS:           brew install python@3.13
Or name one: make demo PYTHON=/path/to/python3.13
EOF
  return 1
}

java_major() {
  local java="${JAVA_HOME:+$JAVA_HOME/bin/}java"
  "$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}

ensure_java() {
  local major
  major=$(java_major || true)
  if [ -n "$major" ] && [ "$major" -ge 17 ]; then return; fi
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "Java 17 or newer is missing: installing the distribution's headless package"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq default-jre-headless >/dev/null
    major=$(java_major || true)
    if [ -n "$major" ] && [ "$major" -ge 17 ]; then return; fi
  fi
  cat >&2 <<EOF
Spark needs a Java runtime, version 17 or newer; found: ${major:-none}.
  Debian, Ubuntu:  sudo apt-get install default-jre-headless
  Fedora:          sudo dnf install java-21-openjdk-headless
  macOS:           brew install openjdk@21
Where one is installed beside an older one, point JAVA_HOME at it.
EOF
  return 1
}

ensure_java

stamp=.venv/.installed
wanted=$(cat pyproject.toml constraints.txt scripts/setup.sh scripts/spark_archive.py scripts/azurite/package-lock.json | cksum)
# A first call pays for compiling what it imports. pip compiles what it installs, but not an editable checkout.
compile_package() { .venv/bin/python -m compileall -q delta_orch pyspark_delta_orch; }

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
  compile_package
  exit 0
fi

python=$(find_python)
say "Setting up .venv with $("$python" --version) (once; takes a minute or two)"
[ -x .venv/bin/python ] || "$python" -m venv .venv
quiet=--quiet
if [ -t 1 ]; then quiet=; fi # progress bars, for a person

# By uv where it is there. It does not read pip's configuration: where it finds no index, pip may.
install() {
  if command -v uv >/dev/null; then
    uv pip install $quiet --python .venv/bin/python --compile-bytecode "$@" && return
    say "uv could not install this: pip does"
  fi
  .venv/bin/python -m pip install $quiet --disable-pip-version-check "$@"
}

install --constraint constraints.txt --editable '.[dev]'

# DuckDB's extensions for Delta and Unity Catalog judge what we write. They fit one DuckDB only, not the newest: so they
# live beside the rest. Where no build of them exists for this machine, their tests skip and the demo says so.
mapfile -t referees < <(grep -E '^duckdb-extension-(delta|httpfs|unity-catalog)==' constraints.txt)
install --upgrade --target .venv/referees "${referees[@]}" ||
  say "No ${referees[*]} for this machine: one independent reader fewer"

# The emulator of Azure comes from npm. Without it, the tests of tables on Azure skip and say so.
if command -v npm >/dev/null; then
  mkdir -p .venv/azurite
  cp scripts/azurite/package.json scripts/azurite/package-lock.json .venv/azurite/
  (cd .venv/azurite && npm ci --no-audit --no-fund --loglevel=error >/dev/null) ||
    say "Azurite could not be installed: the tests of tables on Azure will be skipped"
else
  say "There is no npm to install Azurite with: the tests of tables on Azure will be skipped"
fi

compile_package
# The demo and the tests start dozens of JVMs.
.venv/bin/python -W ignore scripts/spark_archive.py 2>/dev/null ||
  say "Spark's classes could not be kept: its sessions start in twice the time"
printf '%s' "$wanted" > "$stamp"
