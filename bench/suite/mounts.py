"""Mounts of others, to measure beside ours: sshfs, and the floor that any FUSE file system has above it."""

import contextlib
import getpass
import os
import pathlib
import socket
import subprocess
import time

from rounds import CellFailed
from session import PEERS, end_group

READY_SECONDS = 10


def is_mounted(point):
    return any(line.split()[1] == str(point) for line in pathlib.Path("/proc/self/mounts").read_text().splitlines())


class ForegroundMount:
    """A mount whose process we start and end."""

    label = "mount"

    def __init__(self, session, name):
        self.session = session
        self.point = session.make(f"mount-{name}")
        self.log = session.directory / f"{name}.log"
        self.process = None

    def install(self, *packages):
        if os.geteuid() != 0:
            raise CellFailed(f"{self.label}: wants root")
        try:
            self.session.call(PEERS / "gfarm" / "install.sh", *packages, seconds=300)
        except CellFailed as reason:
            raise CellFailed(f"{self.label}: cannot install {', '.join(packages)}: {reason}") from None

    def mount(self, *words, environment=None):
        with open(self.log, "w") as log:
            self.process = self.session.start(*words, environment=environment, stdout=log, stderr=log)
        deadline = time.monotonic() + READY_SECONDS
        while not is_mounted(self.point):
            if self.process.poll() is not None or time.monotonic() > deadline:
                said = self.log.read_text().strip().splitlines()
                self.__exit__()
                raise CellFailed(f"{self.label}: did not mount: {said[-1] if said else 'no word'}")
            time.sleep(0.05)

    def __exit__(self, *_):
        for words in (["umount", self.point], ["umount", "-l", self.point]):
            if is_mounted(self.point):
                with contextlib.suppress(CellFailed):
                    self.session.call(*words, seconds=20)
        if self.process is not None:
            end_group(self.process)


class Sshfs(ForegroundMount):
    """sshfs over an sshd of our own on a loopback port, with the options that help it."""

    label = "sshfs"

    def __init__(self, session):
        super().__init__(session, "sshfs")
        # What the mount shows: the directory on tmpfs that the server serves.
        self.spool = session.make("sshfs-spool")
        self.server = None

    def __enter__(self):
        self.install("sshfs", "openssh-server", "openssh-client")
        keys = self.session.make("ssh")
        for name in ("host", "user"):
            self.session.call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / name)
        port = self._free_port()
        (keys / "authorized").write_text((keys / "user.pub").read_text())
        (keys / "known").write_text(f"[127.0.0.1]:{port} " + " ".join((keys / "host.pub").read_text().split()[:2]) + "\n")
        (keys / "sshd.conf").write_text(
            f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {keys}/host\nAuthorizedKeysFile {keys}/authorized\n"
            "PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            "PermitRootLogin prohibit-password\nSubsystem sftp internal-sftp\n")
        pathlib.Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # privilege separation wants it
        with open(self.session.directory / "sshd.log", "w") as log:
            self.server = self.session.start("/usr/sbin/sshd", "-D", "-e", "-f", keys / "sshd.conf", stdout=log, stderr=log)
        try:
            self._wait_for(port)
            options = (f"port={port},IdentityFile={keys}/user,UserKnownHostsFile={keys}/known,IdentitiesOnly=yes,BatchMode=yes,"
                       "kernel_cache,max_conns=2,Ciphers=aes128-gcm@openssh.com,Compression=no,entry_timeout=60,"
                       "attr_timeout=60,dcache_timeout=120")
            self.mount("sshfs", "-f", "-F", "/dev/null", "-o", options, f"{getpass.getuser()}@127.0.0.1:{self.spool}", self.point,
                       environment={"SSH_AUTH_SOCK": ""})
        except CellFailed:
            end_group(self.server)
            raise
        return self

    def __exit__(self, *_):
        super().__exit__()
        if self.server is not None:
            end_group(self.server)

    @staticmethod
    def _free_port():
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            return listener.getsockname()[1]

    def _wait_for(self, port):
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            time.sleep(0.05)
        raise CellFailed("sshfs: sshd does not answer")


class Floor:
    """A pass-through FUSE file system: libfuse's example, built by the scripts that WEFT_PEERS names. Debian packages none."""

    label = "pass-through FUSE"

    def __init__(self, session):
        self.session = session
        self.point = session.directory / "mount-floor"

    def __enter__(self):
        peers = os.environ.get("WEFT_PEERS")
        if not peers:
            raise CellFailed("pass-through FUSE: no package has one; set WEFT_PEERS to a directory with passthrough.sh")
        self.script = pathlib.Path(peers) / "passthrough.sh"
        self.environment = {"VARIANT": "hp", "WEFT_SHM": str(self.session.make("peers"))}
        self._call("up", self.point, self.session.directory / "floor-spool")
        return self

    def __exit__(self, *_):
        with contextlib.suppress(CellFailed):
            self._call("down")

    def _call(self, *words):
        log = self.session.directory / "floor.log"
        # Its output goes to a file: the processes that it leaves would keep a pipe open.
        with open(log, "w") as file:
            process = self.session.start(self.script, *words, environment=self.environment, stdout=file, stderr=file)
        try:
            code = process.wait(300)
        except subprocess.TimeoutExpired:
            end_group(process)
            code = 1
        if code != 0:
            said = log.read_text().strip().splitlines()
            raise CellFailed(f"pass-through FUSE: {said[-1] if said else 'did not start'}")
