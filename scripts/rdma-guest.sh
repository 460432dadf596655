#!/bin/bash
# Run a command in a throw-away Linux guest that has two soft-RoCE devices.
#
#   scripts/rdma-guest.sh [options] CMD [ARG...]
#     --dir DIR       share DIR read-write with the guest, at the same path
#                     (may be given more than once)
#                     (PATH, HOME, LANG, UCX_* and WEFT_* are passed on)
#     --mem MIB       guest memory (default 4096)
#     --cpus N        guest processors (default: those of this machine, at most 4)
#     --timeout S     give up after S seconds (default 600; exit status 124)
#     --accel A       kvm or tcg (default: kvm if a guest really runs under it)
#     --debug         show the guest's console on stderr
#
# The guest sees this machine's whole file tree at the same paths, read-only
# underneath a throw-away overlay, so programs built here run there unchanged
# and what they write outside DIR is lost.  stdin is not passed on; stdout and
# stderr of CMD come back together on stdout; the exit status is CMD's.
#
# In the guest:  rxe0 on veth w0, 10.77.0.1     rxe1 on veth w1, 10.77.0.2
# Packets between the two addresses really cross the veth pair.
set -euo pipefail

die() { echo "rdma-guest.sh: $*" >&2; exit 125; }
note() { [ -z "${debug:-}" ] || echo "rdma-guest.sh: $*" >&2; }

cache=${XDG_CACHE_HOME:-$HOME/.cache}/weft/rdma-guest
dirs=() mem=4096 limit=600 accel= debug=
cpus=$(nproc); [ "$cpus" -le 4 ] || cpus=4
while [ $# -gt 0 ]; do
    case $1 in
    --dir) d=$(cd "$2" && pwd -P) || die "no folder $2"; dirs+=("$d"); shift 2 ;;
    --mem) mem=$2; shift 2 ;;
    --cpus) cpus=$2; shift 2 ;;
    --timeout) limit=$2; shift 2 ;;
    --accel) accel=$2; shift 2 ;;
    --debug) debug=1; shift ;;
    -h|--help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    --) shift; break ;;
    -*) die "unknown option $1" ;;
    *) break ;;
    esac
done
[ $# -gt 0 ] || die "no command (see --help)"

# ---- packages ---------------------------------------------------------------
need=(qemu-system-x86 seabios busybox-static kmod cpio iproute2 rdma-core ibverbs-providers libucx0)
missing=()
for p in "${need[@]}"; do
    [ "$(dpkg-query -W -f '${Status}' "$p" 2>/dev/null)" = "install ok installed" ] ||
        missing+=("$p")
done
if [ ${#missing[@]} -gt 0 ]; then
    [ "$(id -u)" = 0 ] || die "as root: apt-get install --no-install-recommends ${missing[*]}"
    echo "rdma-guest.sh: installing ${missing[*]}" >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update >&2 || true
    apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends \
        "${missing[@]}" >/dev/null || die "apt-get failed"
fi

# ---- the guest's kernel and initramfs, built once ----------------------------
# Debian's full kernel (the "cloud" one has no InfiniBand), unpacked, not
# installed.
mkdir -p "$cache"
# The soft-RoCE of Linux 6.1 says of a get that it is complete when its bytes have not come, after it sent a request
# once more: nine clients at a time found it. That of 6.12 does not, so Debian's backports are asked first.
kernel_package() { apt-cache "$@" depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image/ {print $2; exit}'; }
download_kernel() (    # DIR
    cd "$1"
    mkdir lists archives
    . /etc/os-release
    site=$(apt-get indextargets --format '$(REPO_URI)' "Created-By: Packages" "Codename: $VERSION_CODENAME" | head -n 1)
    echo "deb $site $VERSION_CODENAME-backports main" >backports.list
    own=(-o "Dir::Etc::sourcelist=$1/backports.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$1/lists"
        -o "Dir::Cache=$1/archives" -o APT::Sandbox::User=root)
    pkg=$(apt-get "${own[@]}" -qq update >&2 && kernel_package "${own[@]}") || pkg=
    if [ -z "$pkg" ] || ! apt-get "${own[@]}" -qq download "$pkg" >&2; then
        echo "rdma-guest.sh: no backported kernel to be had: the usual one, whose soft-RoCE loses bytes now and then" >&2
        own=(-o APT::Sandbox::User=root)
        [ -n "$(kernel_package)" ] || apt-get -qq update >&2
        pkg=$(kernel_package)
        [ -n "$pkg" ] || die "no linux-image-amd64 to be had"
        apt-get "${own[@]}" -qq download "$pkg" >&2
    fi
)
build() (
    flock 9
    [ ! -e "$cache/ready-5" ] || exit 0
    echo "rdma-guest.sh: preparing the guest's kernel in $cache" >&2
    t=$(mktemp -d "$cache/build.XXXXXX"); trap 'rm -rf "$t"' EXIT
    download_kernel "$t"
    dpkg -x "$t"/linux-image*.deb "$t/k"
    v=$(ls "$t/k/lib/modules")
    depmod -b "$t/k" "$v"
    r=$t/root
    mkdir -p "$r"/{bin,mod,proc,sys,dev,low,up,new}
    cp "$(command -v busybox)" "$r/bin/busybox"
    : >"$r/mod/list"
    for m in virtio_pci virtio_console virtio_rng 9pnet_virtio 9p overlay veth \
             crc32_generic crc32_pclmul crc32c_generic rdma_rxe ib_uverbs rdma_ucm ib_umad; do
        modprobe -d "$t/k" -S "$v" --show-depends "$m" 2>/dev/null |
            awk '$1 == "insmod" {print $2}' | while read -r f; do
                b=$(basename "$f")
                [ -e "$r/mod/$b" ] || { cp "$f" "$r/mod/$b"; echo "$b" >>"$r/mod/list"; }
            done || true    # (not every kernel has all of them)
    done
    cat >"$r/init" <<'INIT'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc p /proc; $b mount -t sysfs s /sys; $b mount -t devtmpfs d /dev
for m in $($b cat /mod/list); do
    case $m in
    crc32-pclmul.ko) $b grep -qw weft.pclmul /proc/cmdline || continue ;;
    esac
    $b insmod /mod/$m || echo "weft: no $m"
done
echo "weft: booted"
o=trans=virtio,version=9p2000.L,msize=512000
$b mount -t 9p -o ro,cache=loose,$o weftroot /low || echo "weft: no root"
$b mount -t tmpfs -o mode=755 up /up; $b mkdir /up/u /up/w
$b mount -t overlay -o lowerdir=/low,upperdir=/up/u,workdir=/up/w ov /new || echo "weft: no overlay"
for d in proc sys dev run tmp; do [ -d /new/$d ] || $b mkdir -p /new/$d; done
$b mkdir -p /new/.weft
$b mount -t 9p -o rw,cache=none,$o weftctl /new/.weft || echo "weft: no control folder"
$b mount --move /dev /new/dev; $b mount --move /sys /new/sys; $b mount --move /proc /new/proc
exec $b switch_root /new /bin/bash /.weft/stage2
INIT
    chmod +x "$r/init"
    (cd "$r" && find . | cpio -o -H newc --quiet | gzip -1) >"$t/initrd"
    mv "$t/initrd" "$cache/initrd"; cp "$t"/k/boot/vmlinuz-* "$cache/vmlinuz"
    cp "$t"/k/boot/config-* "$cache/config"
    echo "$v" >"$cache/ready-5"
) 9>"$cache/lock"
[ -e "$cache/ready-5" ] || build

# ---- what the guest runs -----------------------------------------------------
ctl=$(mktemp -d "${TMPDIR:-/tmp}/weft-rdma.XXXXXX")
qpid=
trap 'if [ -n "$qpid" ]; then kill "$qpid" 2>/dev/null || :; fi; rm -rf "$ctl"' EXIT
trap 'exit 130' INT TERM

share=()
{
    echo 'o=trans=virtio,version=9p2000.L,msize=512000,cache=mmap'
    i=0
    for d in ${dirs[@]+"${dirs[@]}"}; do
        printf 'mkdir -p %q; mount -t 9p -o rw,$o weft%d %q || echo "guest: cannot mount it"\n' "$d" $i "$d"
        i=$((i + 1))
    done
} >"$ctl/mounts"
i=0
for d in ${dirs[@]+"${dirs[@]}"}; do
    share+=(-fsdev "local,id=f$i,path=${d//,/,,},security_model=none,multidevs=remap"
            -device "virtio-9p-pci,fsdev=f$i,mount_tag=weft$i")
    i=$((i + 1))
done
{
    for n in PATH HOME LANG "${!UCX_@}" "${!WEFT_@}"; do
        [ -z "${!n+x}" ] || printf 'export %s=%q\n' "$n" "${!n}"
    done
    printf 'cd %q || exit 126\n' "$(pwd -P)"
    printf 'exec'; printf ' %q' "$@"; echo
} >"$ctl/cmd"
cat >"$ctl/stage2" <<'STAGE2'
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
: >/.weft/started
mount -t tmpfs t /run
mkdir -p /dev/shm /dev/pts; mount -t tmpfs t /dev/shm -o mode=1777; mount -t devpts t /dev/pts
ln -sfn /proc/self/fd /dev/fd
. /.weft/mounts
hostname weft-guest 2>/dev/null || echo weft-guest >/proc/sys/kernel/hostname
ulimit -l unlimited; ulimit -n 65536
# Two ends of one veth pair in one name space (rxe in this kernel only serves
# the first name space).  The rules send packets between the two addresses over
# the wire instead of over lo: the "local" table is asked first only for what
# arrives on w0 or w1.
ip link set lo up
ip link add w0 mtu 9000 type veth peer name w1 mtu 9000
for w in w0 w1; do
    echo 1 >/proc/sys/net/ipv4/conf/$w/accept_local
    echo 0 >/proc/sys/net/ipv4/conf/$w/rp_filter
    echo 1 >/proc/sys/net/ipv4/conf/$w/arp_ignore
done
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
ip addr add 10.77.0.1/24 dev w0; ip addr add 10.77.0.2/24 dev w1
ip link set w0 up; ip link set w1 up
ip rule add pref 1 iif w0 lookup local; ip rule add pref 1 iif w1 lookup local
ip rule add pref 2 from 10.77.0.1 to 10.77.0.2 lookup 101
ip rule add pref 2 from 10.77.0.2 to 10.77.0.1 lookup 102
ip rule add pref 3 lookup local; ip rule del pref 0
ip route add 10.77.0.2 dev w0 src 10.77.0.1 table 101
ip route add 10.77.0.1 dev w1 src 10.77.0.2 table 102
ip neigh replace 10.77.0.2 lladdr $(cat /sys/class/net/w1/address) dev w0
ip neigh replace 10.77.0.1 lladdr $(cat /sys/class/net/w0/address) dev w1
rdma link add rxe0 type rxe netdev w0; rdma link add rxe1 type rxe netdev w1
n=0
until [ $n = 50 ] || { grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state &&
    grep -q ACTIVE /sys/class/infiniband/rxe1/ports/1/state; } 2>/dev/null; do
    n=$((n + 1)); sleep 0.1; done
p=$(basename "$(dirname "$(grep -lx weft.out /sys/class/virtio-ports/*/name)")")
bash /.weft/cmd </dev/null >/dev/$p 2>&1
echo $? >/.weft/status
sync
echo o >/proc/sysrq-trigger; sleep 10
STAGE2

# ---- boot ----------------------------------------------------------------------
q=(qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot
   -m "$mem" -smp "$cpus" -kernel "$cache/vmlinuz" -initrd "$cache/initrd"
   -object rng-random,id=rng,filename=/dev/urandom -device virtio-rng-pci,rng=rng)
append="console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check random.trust_cpu=on"
set_accel() {
    case $1 in
    kvm) acc=(-accel kvm -cpu host) ;;
    tcg) acc=(-accel tcg,thread=multi,tb-size=512 -cpu max) ;;
    *) die "accel is kvm or tcg" ;;
    esac
}
if [ -z "$accel" ]; then
    # /dev/kvm may be there and answer, yet not run a stock kernel: try once.
    id=$(uname -r)-$(wc -c <"$cache/initrd")
    if [ "$(sed -n 1p "$cache/accel" 2>/dev/null)" = "$id" ]; then
        accel=$(sed -n 2p "$cache/accel")
    else
        accel=tcg
        if [ -w /dev/kvm ]; then
            note "trying kvm"
            set_accel kvm
            timeout -k 2 15 "${q[@]}" "${acc[@]}" -serial "file:$ctl/kvm" -append "$append" \
                </dev/null >/dev/null 2>&1 || true
            ! grep -aq "weft: booted" "$ctl/kvm" 2>/dev/null || accel=kvm
        fi
        printf '%s\n' "$id" "$accel" >"$cache/accel"
    fi
fi
set_accel "$accel"
note "accel $accel"
con=file:$ctl/console
if [ -n "$debug" ]; then exec 8>&2; con=file:/dev/fd/8; append=${append/ quiet/}; fi
q+=("${acc[@]}" -append "$append" -serial "$con"
    -fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap
    -device virtio-9p-pci,fsdev=root,mount_tag=weftroot
    -fsdev "local,id=ctl,path=$ctl,security_model=none,multidevs=remap"
    -device virtio-9p-pci,fsdev=ctl,mount_tag=weftctl
    ${share[@]+"${share[@]}"}
    -device virtio-serial-pci -chardev "file,id=out,path=$ctl/out"
    -device virtserialport,chardev=out,name=weft.out)
# (a fifo, not -chardev stdio: that stops the guest's writes at end of stdin)
mkfifo "$ctl/out"
# A kernel that patches itself while both emulated processors run it dies now and then before it has started anything:
# once more, then.
end=$((SECONDS + limit))
for _ in 1 2 3; do
    cat "$ctl/out" &
    opid=$!
    "${q[@]}" </dev/null >/dev/null 2>"$ctl/qemu" &
    qpid=$!
    while kill -0 "$qpid" 2>/dev/null; do
        if [ $SECONDS -ge $end ]; then
            echo "rdma-guest.sh: out of time after $limit s" >&2
            kill "$qpid" 2>/dev/null || :; wait "$qpid" || :; qpid=; wait "$opid" || :; exit 124
        fi
        sleep 0.2
    done
    [ ! -e "$ctl/started" ] || break
    note "the guest did not start"
    kill "$opid" 2>/dev/null || :; wait "$opid" || :
done
wait "$qpid" || :
qpid=
[ -s "$ctl/status" ] || kill "$opid" 2>/dev/null || :     # (qemu may never have opened it)
wait "$opid" || :
if [ ! -s "$ctl/status" ]; then
    echo "rdma-guest.sh: the guest ended without a status; its last words:" >&2
    cat "$ctl/qemu" >&2; tail -n 20 "$ctl/console" >&2 2>/dev/null || :
    exit 125
fi
exit "$(cat "$ctl/status")"
