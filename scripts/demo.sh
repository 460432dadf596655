#!/bin/bash
# scripts/demo.sh WEFT - the first ten minutes with Weft, in a few seconds: four nodes on this machine, files in and out,
# where they live, a mount. Everything is in one temporary directory; all of it is ended and removed, also when interrupted.
set -eu
weft=$(realpath "$1")
name=demo
ground=${TMPDIR:-/tmp}/weft-demo.$$
mounted=$ground/mnt

end() {
    # A second interrupt does not stop this.
    trap '' INT TERM
    trap - EXIT
    set +e
    if mountpoint -q "$mounted" 2>/dev/null; then "$weft" umount --force "$mounted"; fi
    if [ -e "$ground/run/weft/$name" ]; then "$weft" down --force "$name"; fi
    rm -rf --one-file-system "$ground"
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir -m 700 "$ground" || { trap - EXIT; exit 1; }
# Runtime files and logs of its own: a file system that runs already is not touched.
export XDG_RUNTIME_DIR=$ground/run TMPDIR=$ground/tmp
mkdir -m 700 "$XDG_RUNTIME_DIR" "$TMPDIR"

# Says what it does, and does it.
run() {
    printf '\n\e[1m$ %s\e[0m\n' "$*"
    if [ "$1" = weft ]; then shift; "$weft" "$@"; else "$@"; fi
}

mkdir "$ground/in" "$mounted"
head -c 16M /dev/urandom > "$ground/in/large.bin"
for number in 1 2 3; do echo "small file $number" > "$ground/in/small$number.txt"; done
cd "$ground"

run weft up $name --nodes 4 --store "$ground/store:1GiB"
run weft mkdir $name:/data
run weft cp -r in $name:/data
run weft ls -lR $name:/
run weft locate $name:/data/in/large.bin
run weft cp -r $name:/data/in out
run cmp in/large.bin out/large.bin
run weft status -v $name

if [ ! -e /dev/fuse ]; then
    printf '\nno mount: this machine has no /dev/fuse\n'
elif [ "$(id -u)" != 0 ] && ! command -v fusermount3 >/dev/null; then
    printf '\nno mount: fusermount3 is missing (package fuse3), and only root mounts without it\n'
else
    run weft mount $name "$mounted"
    run ls -l "$mounted/data/in"
    run cat "$mounted/data/in/small2.txt"
    run cmp in/large.bin "$mounted/data/in/large.bin"
    run cp in/small1.txt "$mounted/through-the-mount.txt"
    run weft cat $name:/through-the-mount.txt
    run weft umount "$mounted"
fi
run weft down $name
