package host

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// capabilities returns a configuration space with the capability ACS, with these control bits,
// behind another one.
func capabilities(control uint16) []byte {
	config := make([]byte, 4096)
	binary.LittleEndian.PutUint32(config[0x100:], 0x0001|2<<16|0x148<<20) // errors
	binary.LittleEndian.PutUint32(config[0x148:], 0x000d|1<<16)
	binary.LittleEndian.PutUint16(config[0x148+4:], 0x1f)
	binary.LittleEndian.PutUint16(config[0x148+6:], control)
	return config
}

func TestACSBridges(t *testing.T) {
	root := t.TempDir()
	for name, c := range map[string]struct {
		class  string
		config []byte
	}{
		"0000:00:01.0": {"0x060400\n", capabilities(0x1d)}, "0000:00:02.0": {"0x060400\n", capabilities(0x01)}, // validates sources only
		"0000:01:00.0": {"0x060400\n", capabilities(1 << 4)}, "0000:02:00.0": {"0x030200\n", capabilities(0x1d)}, // a GPU
		"0000:00:00.0": {"0x060000\n", make([]byte, 256)}, "0000:03:00.0": {"0x060400\n", make([]byte, 4096)},
	} {
		dir := filepath.Join(root, "sys/bus/pci/devices", name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for file, content := range map[string][]byte{"class": []byte(c.class), "config": c.config} {
			if err := os.WriteFile(filepath.Join(dir, file), content, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	h := Host{Root: root}
	if all, complete := h.ACSBridges(); !slices.Equal(all, []string{"0000:00:01.0", "0000:01:00.0"}) || !complete {
		t.Errorf("%q, %v", all, complete)
	}
	if err := os.WriteFile(filepath.Join(root, "sys/bus/pci/devices/0000:00:01.0/config"), make([]byte, 64), 0o644); err != nil {
		t.Fatal(err) // what users other than root see
	}
	if all, complete := h.ACSBridges(); !slices.Equal(all, []string{"0000:01:00.0"}) || complete {
		t.Errorf("%q, %v", all, complete)
	}
	if all, complete := (Host{Root: t.TempDir()}).ACSBridges(); len(all) != 0 || !complete {
		t.Errorf("%q, %v", all, complete)
	}
}

func FuzzRedirects(f *testing.F) {
	for _, control := range []uint16{0, 1, 1 << 2, 1 << 4} {
		f.Add(capabilities(control))
	}
	cycle := capabilities(0)
	binary.LittleEndian.PutUint32(cycle[0x148:], 0x0002|0x100<<20)
	f.Add(cycle)
	f.Add(cycle[:0x14c])
	f.Fuzz(func(t *testing.T, config []byte) {
		if redirects(config) && len(config) < 0x108 {
			t.Errorf("%d bytes have an extended capability", len(config))
		}
	})
}
