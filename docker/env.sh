#!/bin/sh
# The numbers of this machine that compose.yaml asks for: docker/env.sh > docker/.env
# Group numbers differ between releases, and a container knows the host's groups by number alone.
set -eu

group() {
    found=$(getent group "$1" | cut -d: -f3)
    [ -n "$found" ] || { echo "there is no group $1 on this machine: $2" >&2; exit 1; }
    echo "$found"
}

release=${NV_TEGRA_RELEASE:-/etc/nv_tegra_release}
case $(head -n 1 "$release" 2>/dev/null || true) in
    "# R36 "*) jetpack=6 ;;
    "# R39 "*) jetpack=7 ;;
    *) echo "$release names neither L4T 36 (JetPack 6) nor 39 (JetPack 7.2)" >&2; exit 1 ;;
esac
video=$(group video "is this a Jetson?")
render=$(group render "is this a Jetson?")
gid=$(group edge-runtime "sudo systemd-sysusers systemd/sysusers.conf makes it")
uid=$(id -u edge-runtime)

echo "JETPACK=$jetpack"
echo "EDGE_UID=$uid"
echo "EDGE_GID=$gid"
echo "VIDEO_GID=$video"
echo "RENDER_GID=$render"
# Only where jetson-stats is installed, for compose.jtop.yaml.
jtop=$(getent group jtop | cut -d: -f3)
[ -z "$jtop" ] || echo "JTOP_GID=$jtop"
