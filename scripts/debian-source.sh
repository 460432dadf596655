#!/bin/bash
# Fetches the sources of a Debian package, with Debian's patches:
#     scripts/debian-source.sh PACKAGE VERSION FOLDER
# FOLDER is replaced. Debian's images list no sources; so the lists are made of those that apt has, beside FOLDER.
# Needs apt-get and dpkg-source. On failure FOLDER.log says what they said.
set -euo pipefail
package=$1 version=$2
mkdir -p "$(dirname "$3")"
folder=$(realpath -m "$3")

work=$folder.work log=$folder.log apt=$folder.work/apt
rm -rf "$work" "$folder"
trap 'rm -rf "$work"' EXIT
mkdir -p "$apt/sources" "$apt/lists/partial" "$apt/archives/partial"
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [ ! -f "$file" ] || sed -n 's/^deb /deb-src /p' "$file" >> "$apt/sources/weft.list"
done
for file in /etc/apt/sources.list.d/*.sources; do
    [ ! -f "$file" ] || sed 's/^Types:.*/Types: deb-src/' "$file" > "$apt/sources/$(basename "$file")"
done
options=(-qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$apt/sources"
    -o Dir::State::lists="$apt/lists" -o Dir::Cache="$apt" -o APT::Sandbox::User=)
cd "$work"
if ! { apt-get "${options[@]}" update && apt-get "${options[@]}" source "$package=$version"; } > "$log" 2>&1; then
    echo "$package $version: apt-get source failed: $(tail -n 1 "$log")" >&2
    exit 1
fi
mv "$package"-*/ "$folder"
rm "$log"
