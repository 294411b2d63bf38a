package host

import (
	"os"
	"path/filepath"
	"testing"
)

// Devices that lie one on the other in a circle, which /sys never shows, end.
func TestBlockDeviceInACircle(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "sys/devices/dm-0")
	if err := os.MkdirAll(filepath.Join(dir, "slaves"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(root, "sys/dev/block"), 0o755); err != nil {
		t.Fatal(err)
	}
	for target, name := range map[string]string{"../../devices/dm-0": "sys/dev/block/253:0", "../../dm-0": "sys/devices/dm-0/slaves/dm-0"} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	d, ok := Host{Root: root}.BlockDevice("253:0")
	if disks := d.Disks(); !ok || len(disks) != 1 || disks[0] != "dm-0" {
		t.Errorf("%+v, %v", d, ok)
	}
	if d, ok := (Host{Root: root}).BlockDevice("8:0"); ok {
		t.Errorf("%+v", d)
	}
}
