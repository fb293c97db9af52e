#!/usr/bin/env bash
# Creates .venv/reference: Delta on Spark, the reference implementation, which needs a Spark of its own and JARs from Maven.
# Only `make interop` calls this; without it those tests skip and say so.
set -euo pipefail
cd "$(dirname "$0")/.."
home=.venv/reference
source=tests/interop/reference
stamp=$home/.installed
wanted=$(cat "$source/requirements.txt" "$source/pom.xml" "$source"/*.java scripts/setup_reference.sh | cksum)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then exit 0; fi

command -v mvn >/dev/null || { echo "make interop needs Maven (mvn) to fetch Delta on Spark" >&2; exit 1; }
command -v javac >/dev/null || { echo "make interop needs a JDK (javac) for a catalog of Spark" >&2; exit 1; }
rm -rf "$home"
.venv/bin/python -m venv "$home"
"$home/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$source/requirements.txt"
# Delta's own JARs only: what else it names is in pyspark, in the versions that this Spark wants.
mvn --quiet --batch-mode --file "$source/pom.xml" dependency:copy-dependencies \
  -DincludeGroupIds=io.delta,io.unitycatalog -DoutputDirectory="$PWD/$home/jars"
# Unity Catalog's connector for Spark is not on Maven for this Spark; Delta asks for a catalog of its name.
spark=$("$home/bin/python" -c "import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent / 'jars')")
javac -nowarn -cp "$spark/*:$home/jars/*" -d "$home/classes" "$source"/*.java
jar --create --file "$home/jars/catalog.jar" -C "$home/classes" .
printf '%s' "$wanted" > "$stamp"
