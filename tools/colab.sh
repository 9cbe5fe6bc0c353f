#!/bin/sh
# Executes every lesson of both editions with Colab's versions of the packages that the lessons use, alone:
#   sh tools/colab.sh FOLDER [LIST]
# FOLDER gets the environment and the executed notebooks. LIST is a file with Colab's versions; without it, Google's
# own list is fetched. Fails if a lesson fails, if its Chinese labels are no text, or if it writes to stderr.
set -eu
folder=$1
list=${2:-$folder/colab.txt}
mkdir -p "$folder/lessons"
if [ $# -lt 2 ]; then
    curl --fail --silent --show-error --output "$list" \
        https://raw.githubusercontent.com/googlecolab/backend-info/main/pip-freeze.txt
fi
python3 -m venv "$folder/env"
# Colab's torch comes from an index of its own; the number before the + is the version.
packages=$(sed -nE 's/^(torch|numpy|matplotlib|matplotlib-inline|ipykernel|ipython|jupyter[-_]client|nbclient)(==| @ .*\/torch-)([0-9.]+).*/\1==\3/p' "$list")
echo "$packages"
# shellcheck disable=SC2086
"$folder/env/bin/pip" install --quiet $packages nbclient nbformat
for edition in en zh; do
    for lesson in "notebooks/$edition"/*.ipynb; do
        alone="$folder/lessons/$edition-$(basename "$lesson" .ipynb)"
        rm -rf "$alone"
        mkdir "$alone"
        cp "$lesson" "$alone"
        echo "$lesson"
        "$folder/env/bin/python" tools/run_alone.py "$alone"/*.ipynb
    done
done
"$folder/env/bin/python" tools/look_alone.py "$folder"/lessons/*/*.ipynb
