"""Exit code 0 where the daemon behind the socket is ready. Knows no package: it runs twice a minute on small boards."""

import socket
import sys

PATIENCE_S = 4.0


def main(path: str) -> int:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(PATIENCE_S)
            connection.connect(path)
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = connection.recv(256)
    except OSError as problem:
        print(f"{path}: {problem.strerror or problem}", file=sys.stderr)
        return 1
    status = answer.split(b"\r\n", 1)[0].decode("ascii", "replace")
    print(status)
    return 0 if status.split()[1:2] == ["200"] else 1


if __name__ == "__main__":
    sys.exit(main(*(sys.argv[1:] or ["/run/edge-runtime/api.sock"])))
