# Runs SCRATCH/out/all.sh in a sandbox: it sees this machine's files, but changes only
# copies in memory, and has its own processes, network and /dev/shm. The sandbox ends
# with its first process. Start this in new mount, network and process namespaces.
#
#   sandbox.sh SCRATCH SOURCE
#
# The working directory is SOURCE. SCRATCH/out is shared with the outside.
set -euo pipefail
scratch=$1 source=$2
layers=$scratch/layers root=$scratch/layers/root
mkdir -p "$layers" "$scratch/out" "$scratch/data"
mount -t tmpfs tmpfs "$layers"
mkdir "$layers/upper" "$layers/work" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$layers/upper,workdir=$layers/work" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --bind /dev "$root/dev" # without what is mounted below it
# Twice what RTP-LLM needs; untouched memory costs nothing.
mount -t tmpfs -o size=16g tmpfs "$root/dev/shm"
# The overlay does not show other file systems.
mkdir -p "$root/$scratch/out" "$root/var/lib/kv3fs"
mount --bind "$scratch/out" "$root/$scratch/out"
[ -e "$root/$source/go.mod" ] || mount --bind --mkdir "$source" "$root/$source"
# A data directory on an overlay would have no passthrough.
mount --bind "$scratch/data" "$root/var/lib/kv3fs"
ip link set lo up
export HOME=/root
exec chroot "$root" bash -c 'cd "$1" && rm -rf dist && exec bash -euo pipefail "$2"' sandbox "$source" "$scratch/out/all.sh"
