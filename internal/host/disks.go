package host

import (
	"os"
	"path/filepath"
	"slices"
)

// BlockDevice is a disk, a partition of one, or a device that is made of others.
type BlockDevice struct {
	Name  string        // as in /sys/block or below a disk there: nvme0n1, sda1, md0, dm-2
	Below []BlockDevice // of a partition its disk, of md and device mapper their parts; none of a disk
}

// mostBelow bounds how many devices lie one on the other.
const mostBelow = 8

// BlockDevice returns the block device with a number, major:minor as in a Mount, and false if
// there is none: many file systems are on no device.
func (h Host) BlockDevice(number string) (BlockDevice, bool) {
	dir, err := filepath.EvalSymlinks(h.Path("/sys/dev/block/" + number))
	if err != nil {
		return BlockDevice{}, false
	}
	return blockDevice(dir, mostBelow), true
}

// blockDevice reads the directory of a device in /sys.
func blockDevice(dir string, deepest int) BlockDevice {
	d := BlockDevice{Name: filepath.Base(dir)}
	if deepest == 0 {
		return d
	}
	if _, err := os.Lstat(filepath.Join(dir, "partition")); err == nil {
		d.Below = append(d.Below, blockDevice(filepath.Dir(dir), deepest-1))
		return d
	}
	parts, _ := os.ReadDir(filepath.Join(dir, "slaves")) // a disk has none
	for _, part := range parts {
		if real, err := filepath.EvalSymlinks(filepath.Join(dir, "slaves", part.Name())); err == nil {
			d.Below = append(d.Below, blockDevice(real, deepest-1))
		}
	}
	return d
}

// Disks returns the names of the disks that a device is made of, sorted and without
// duplicates.
func (d BlockDevice) Disks() []string {
	if len(d.Below) == 0 {
		return []string{d.Name}
	}
	var all []string
	for _, below := range d.Below {
		all = append(all, below.Disks()...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
