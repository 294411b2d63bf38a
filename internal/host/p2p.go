package host

import (
	"encoding/binary"
	"os"
	"slices"
	"strings"
)

// NVMeMultipath reports whether the kernel joins the paths to an NVMe disk, with which PCI
// P2PDMA does not work.
func (h Host) NVMeMultipath() bool {
	text, _ := h.read("/sys/module/nvme_core/parameters/multipath") // without the module, there is no NVMe
	return strings.TrimSpace(text) == "Y"
}

// NVIDIARegistry returns what NVIDIA's driver was loaded with as RegistryDwords, such as
// RMForceStaticBar1=1, in order.
func (h Host) NVIDIARegistry() (all []string) {
	text, _ := h.read("/proc/driver/nvidia/params")
	for line := range strings.Lines(text) {
		value, ok := strings.CutPrefix(line, "RegistryDwords:")
		if !ok {
			continue
		}
		for word := range strings.SplitSeq(strings.Trim(strings.TrimSpace(value), `"`), ";") {
			if word = strings.TrimSpace(word); word != "" {
				all = append(all, word)
			}
		}
	}
	return all
}

// ACSBridges lists the PCI bridges that redirect transfers between devices below them, by
// Access Control Services. Only root can see that: complete reports whether each bridge could
// be read.
func (h Host) ACSBridges() (addresses []string, complete bool) {
	const dir = "/sys/bus/pci/devices"
	entries, _ := os.ReadDir(h.Path(dir)) // without PCI, there are none
	complete = true
	for _, e := range entries {
		class, _ := h.read(dir + "/" + e.Name() + "/class")
		if !strings.HasPrefix(class, "0x0604") {
			continue
		}
		config, _ := h.read(dir + "/" + e.Name() + "/config")
		if len(config) < extendedAt+4 {
			complete = false
			continue
		}
		if redirects([]byte(config)) {
			addresses = append(addresses, e.Name())
		}
	}
	slices.Sort(addresses)
	return addresses, complete
}

// Of the configuration space of a PCI Express device: where the extended capabilities begin,
// the number of that of Access Control Services, where its control register is in it, and the
// bits of that: requests and completions between devices are redirected, and forwarded upstream.
const (
	extendedAt    = 0x100
	acsCapability = 0x000d
	acsControl    = 6
	acsRedirect   = 1<<2 | 1<<3 | 1<<4
)

// redirects reports whether a configuration space has such a bit set.
func redirects(config []byte) bool {
	at := extendedAt
	for range len(config) / 8 { // bounds the steps if the list is a cycle
		if at < extendedAt || at+8 > len(config) {
			return false
		}
		header := binary.LittleEndian.Uint32(config[at:])
		if header&0xffff == acsCapability {
			return binary.LittleEndian.Uint16(config[at+acsControl:])&acsRedirect != 0
		}
		at = int(header >> 20 &^ 3)
	}
	return false
}
