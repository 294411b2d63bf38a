package gpudirect

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/host"
)

// machine has one device of each kind, and a mount on each.
func machine(t *testing.T, mountinfo string) host.Host {
	t.Helper()
	root := t.TempDir()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(root, "proc/self"), 0o755))
	must(os.WriteFile(filepath.Join(root, "proc/self/mountinfo"), []byte(mountinfo), 0o644))
	must(os.MkdirAll(filepath.Join(root, "sys/dev/block"), 0o755))
	device := func(number, dir string, parts ...string) {
		must(os.MkdirAll(filepath.Join(root, "sys/devices", dir, "slaves"), 0o755))
		must(os.Symlink("../../devices/"+dir, filepath.Join(root, "sys/dev/block", number)))
		for _, part := range parts {
			up := strings.Repeat("../", strings.Count(dir, "/")+2)
			must(os.Symlink(up+part, filepath.Join(root, "sys/devices", dir, "slaves", filepath.Base(part))))
		}
	}
	device("259:0", "pci0/nvme/nvme0/nvme0n1")
	device("259:1", "pci0/nvme/nvme0/nvme0n1/nvme0n1p1")
	must(os.WriteFile(filepath.Join(root, "sys/devices/pci0/nvme/nvme0/nvme0n1/nvme0n1p1/partition"), []byte("1\n"), 0o644))
	device("259:2", "pci0/nvme/nvme1/nvme1n1")
	device("8:0", "pci0/ata1/sda")
	device("9:0", "virtual/block/md0", "pci0/nvme/nvme0/nvme0n1", "pci0/nvme/nvme1/nvme1n1")
	device("9:1", "virtual/block/md1", "pci0/nvme/nvme0/nvme0n1", "pci0/ata1/sda")
	device("253:0", "virtual/block/dm-0", "pci0/nvme/nvme0/nvme0n1/nvme0n1p1")
	device("253:1", "virtual/block/dm-1", "virtual/block/md0")
	return host.Host{Root: root}
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name, mount string // mount: device, point, type, source, options of the file system
		want        Way
		why         string
	}{
		{"ext4 on NVMe", "259:1 / /kv rw - ext4 /dev/nvme0n1p1 rw", Direct, "on ext4 on nvme0n1"},
		{"ordered", "259:1 / /kv rw - ext4 /dev/nvme0n1p1 rw,data=ordered", Direct, "nvme0n1"},
		{"journalled data", "259:1 / /kv rw - ext4 /dev/nvme0n1p1 rw,data=journal", Copied, "data=journal"},
		{"writeback data", "259:1 / /kv rw - ext4 /dev/nvme0n1p1 rw,data=writeback", Copied, "data=writeback"},
		{"XFS on NVMe", "259:2 / /kv rw - xfs /dev/nvme1n1 rw", Direct, "nvme1n1"},
		{"RAID of NVMe", "9:0 / /kv rw - xfs /dev/md0 rw", Direct, "nvme0n1, nvme1n1"},
		{"RAID with a disk", "9:1 / /kv rw - xfs /dev/md1 rw", Copied, "sda, which is not NVMe"},
		{"SATA", "8:0 / /kv rw - ext4 /dev/sda rw", Copied, "sda"},
		{"LVM", "253:0 / /kv rw - ext4 /dev/mapper/vg-kv rw", Copied, "device mapper"},
		{"LVM on RAID", "253:1 / /kv rw - xfs /dev/mapper/vg-kv rw", Copied, "device mapper"},
		{"hidden device", "0:70 / /kv rw - xfs /dev/root rw", Copied, "does not show"},
		{"Lustre", "0:50 / /kv rw - lustre mgs@o2ib:/fs rw,flock", Direct, "lustre"},
		{"Weka", "0:51 / /kv rw - wekafs backend/fs rw", Direct, "wekafs"},
		{"BeeGFS", "0:52 / /kv rw - beegfs beegfs_nodev rw", Direct, "beegfs"},
		{"GPFS", "0:53 / /kv rw - gpfs fs1 rw", Direct, "gpfs"},
		{"NFS over RDMA", "0:54 / /kv rw - nfs server:/x rw,vers=3,proto=rdma,port=20049", Direct, "RDMA"},
		{"NFS over TCP", "0:55 / /kv rw - nfs4 server:/x rw,vers=4.2,proto=tcp", Copied, "not mounted over RDMA"},
		{"tmpfs", "0:56 / /kv rw - tmpfs tmpfs rw", Refused, "tmpfs"},
		{"overlay", "0:57 / /kv rw - overlay overlay rw,lowerdir=/l", Refused, "container"},
		{"a 3FS", "0:58 / /kv rw - fuse.hf3fs hf3fs rw", Copied, "user space"},
		{"FUSE", "0:58 / /kv rw - fuse x rw", Copied, "user space"},
		{"btrfs", "0:59 / /kv rw - btrfs /dev/nvme0n1 rw", Copied, "no direct way"},
		{"a path that only begins like the mount", "0:56 / /k rw - tmpfs tmpfs rw", Direct, "nvme0n1"},
		{"covered by another", "259:1 / /kv rw - ext4 /dev/nvme0n1p1 rw\n31 1 0:56 / /kv rw - tmpfs tmpfs rw", Refused, "tmpfs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := machine(t, "1 0 259:1 / / rw - ext4 /dev/nvme0n1p1 rw\n30 1 "+c.mount+"\n")
			v, err := Judge(h, "/kv/blocks")
			if err != nil || v.Way != c.want || !strings.Contains(v.Why, c.why) {
				t.Errorf("%+v, %v", v, err)
			}
			if (v.Cure == "") != (v.Way == Direct) || v.Type == "" {
				t.Errorf("%+v", v)
			}
		})
	}
}

func TestNoMounts(t *testing.T) {
	if v, err := Judge(machine(t, ""), "/kv"); err == nil {
		t.Errorf("%+v", v)
	}
	if v, err := Judge(host.Host{Root: t.TempDir()}, "/kv"); err == nil {
		t.Errorf("%+v", v)
	}
}

// Whatever this machine has, its root is judged.
func TestHere(t *testing.T) {
	v, err := Judge(host.Local(), "/")
	if err != nil || v.Type == "" || v.Why == "" {
		t.Errorf("%+v, %v", v, err)
	}
}
