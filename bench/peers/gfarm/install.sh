#!/bin/bash
# install.sh PACKAGE... - install Debian packages unless they are there. Removes nothing. Fails when it is not possible.
set -u
need=()
for package; do
	[ "$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null)" = "install ok installed" ] || need+=("$package")
done
[ ${#need[@]} -gt 0 ] || exit 0
command -v apt-get >/dev/null || { echo "install: no apt-get here; missing: ${need[*]}" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "install: not root; missing: ${need[*]}" >&2; exit 1; }
echo "install: ${need[*]}" >&2
quiet() {
	DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" </dev/null >/dev/null
}
quiet install -y --no-install-recommends --no-remove "${need[@]}" 2>/dev/null ||
	{ quiet update && quiet install -y --no-install-recommends --no-remove "${need[@]}"; }
