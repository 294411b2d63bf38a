// Package gpudirect judges from a host's mounts whether GPUDirect Storage suits a directory:
// whether cuFile can move data between its file system and GPU memory without a copy through
// host memory.
//
// It knows what NVIDIA documents: ext4 and XFS on NVMe, and the network file systems that have
// their own support. What the GPU, the PCIe topology and /etc/cufile.json add, gdscheck shows.
package gpudirect

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kv3fs/kv3fs/internal/host"
)

// Way is how cuFile moves the data of a file system.
type Way int

const (
	// Refused means that cuFile cannot be used there: transfers need another way.
	Refused Way = iota
	// Copied means that cuFile copies through host memory, if its allow_compat_mode is on.
	Copied
	// Direct means that nothing here is in the way of a transfer past host memory.
	Direct
)

func (w Way) String() string {
	return [...]string{"refused", "copied through host memory", "direct"}[w]
}

// Verdict says which way data goes, why, and what to do for a better one.
type Verdict struct {
	Way  Way
	Type string // of the file system
	Why  string // a sentence's end after the path: "is on tmpfs, which ..."
	Cure string // "" where the way is Direct
}

// Judge judges the file system that holds a path, which is absolute and without symbolic links.
func Judge(h host.Host, path string) (Verdict, error) {
	mounts, err := h.Mounts()
	if err != nil {
		return Verdict{}, err
	}
	m, ok := host.Holding(mounts, path)
	if !ok {
		return Verdict{}, fmt.Errorf("%s is on no mount", path)
	}
	v := judge(h, m)
	v.Type = m.Type
	return v, nil
}

const another = "use a directory on local NVMe with ext4 or XFS, or on a parallel file system with GPUDirect Storage"

func judge(h host.Host, m host.Mount) Verdict {
	switch kind, _, _ := strings.Cut(m.Type, "."); {
	case slices.Contains(inMemory, m.Type):
		return Verdict{Refused, "", "is on " + m.Type + ", which has no device that a GPU could reach", another}
	case m.Type == "overlay":
		return Verdict{Refused, "", "is on overlay, as a container's own files are, which cuFile does not know", "use a volume of the container; " + another}
	case m.Type == "lustre", m.Type == "wekafs", m.Type == "beegfs", m.Type == "gpfs":
		return Verdict{Direct, "", "is on " + m.Type + ", which supports GPUDirect Storage", ""}
	case m.Type == "nfs", m.Type == "nfs4":
		return nfs(m)
	case m.Type == "ext4", m.Type == "xfs":
		return local(h, m)
	case kind == "fuse":
		return Verdict{Copied, "", "is on " + m.Type + ", a file system in user space", another}
	}
	return Verdict{Copied, "", "is on " + m.Type + ", for which cuFile has no direct way", another}
}

var inMemory = []string{"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}

func nfs(m host.Mount) Verdict {
	if m.HasOption("proto=rdma") || m.HasOption("rdma") {
		return Verdict{Direct, "", "is on " + m.Type + " over RDMA", ""}
	}
	return Verdict{Copied, "", "is on " + m.Type + ", which is not mounted over RDMA", "mount it with -o proto=rdma, if server and network support that"}
}

// local judges ext4 and XFS by their options and the disks below them.
func local(h host.Host, m host.Mount) Verdict {
	for _, mode := range []string{"data=journal", "data=writeback"} {
		if m.Type == "ext4" && m.HasOption(mode) {
			return Verdict{Copied, "", "is on ext4 with " + mode, "mount it with data=ordered, ext4's default"}
		}
	}
	device, ok := h.BlockDevice(m.Device)
	if !ok {
		return Verdict{Copied, "", "is on " + m.Type + " on a device that /sys does not show", "gdscheck -p tells whether GPUDirect Storage supports it"}
	}
	disks := device.Disks()
	isNVMe := func(disk string) bool { return strings.HasPrefix(disk, "nvme") }
	switch other := slices.IndexFunc(disks, func(disk string) bool { return !isNVMe(disk) }); {
	case other >= 0:
		return Verdict{Copied, "", fmt.Sprintf("is on %s on %s, which is not NVMe", m.Type, disks[other]), another}
	case mapped(device):
		return Verdict{Copied, "", fmt.Sprintf("is on %s on a device mapper volume (LVM, encryption) above %s", m.Type, strings.Join(disks, ", ")),
			"use the NVMe device itself, or md RAID 0; gdscheck -p tells what this host supports"}
	}
	return Verdict{Direct, "", "is on " + m.Type + " on " + strings.Join(disks, ", "), ""}
}

// mapped reports whether a device mapper is between the device and its disks.
func mapped(d host.BlockDevice) bool {
	return strings.HasPrefix(d.Name, "dm-") || slices.ContainsFunc(d.Below, mapped)
}
