package host

import (
	"os"
	"slices"
	"strconv"
	"strings"
)

// GPU is an NVIDIA GPU as its driver shows it.
type GPU struct {
	Address   string // on the PCI bus
	Model     string
	BAR1Bytes int64 // the window through which other devices reach its memory; 0 if unknown
}

// GPUs lists the NVIDIA GPUs of the host.
func (h Host) GPUs() (all []GPU) {
	const dir = "/proc/driver/nvidia/gpus"
	entries, _ := os.ReadDir(h.Path(dir)) // without the driver, there are none
	for _, e := range entries {
		text, _ := h.read(dir + "/" + e.Name() + "/information")
		gpu := GPU{Address: e.Name(), Model: "an NVIDIA GPU"}
		for line := range strings.Lines(text) {
			if model, ok := strings.CutPrefix(line, "Model:"); ok {
				gpu.Model = strings.TrimSpace(model)
			}
		}
		resources, _ := h.read("/sys/bus/pci/devices/" + e.Name() + "/resource")
		gpu.BAR1Bytes = barBytes(resources, 1)
		all = append(all, gpu)
	}
	return all
}

// barBytes returns the size of a region in the text of a PCI device's resource file, which has
// a line with start, end and flags for each. A 64-bit region takes two lines.
func barBytes(text string, bar int) int64 {
	n := 0
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		start, err := strconv.ParseUint(f[0], 0, 64)
		end, endErr := strconv.ParseUint(f[1], 0, 64)
		if err != nil || endErr != nil || end <= start || end-start >= 1<<62 {
			continue // the second line of a region, or one that is not in use
		}
		if n == bar {
			return int64(end - start + 1)
		}
		n++
	}
	return 0
}

// NVIDIADriver describes NVIDIA's driver, "" if it is not loaded, and says whether its kernel
// modules are the open ones.
func (h Host) NVIDIADriver() (version string, open bool) {
	text, err := h.read("/proc/driver/nvidia/version")
	if err != nil {
		return "", false
	}
	line, _, _ := strings.Cut(text, "\n")
	line = strings.TrimSpace(strings.TrimPrefix(line, "NVRM version:"))
	return strings.Join(strings.Fields(line), " "), strings.Contains(line, "Open Kernel Module")
}

// NVIDIAFSVersion returns the version of the module nvidia-fs, "" if it is not known.
func (h Host) NVIDIAFSVersion() string {
	text, _ := h.read("/proc/driver/nvidia-fs/version")
	_, version, _ := strings.Cut(text, ":")
	return strings.TrimSpace(version)
}

// HasIOMMU reports whether the kernel uses an IOMMU.
func (h Host) HasIOMMU() bool {
	entries, _ := os.ReadDir(h.Path("/sys/class/iommu"))
	return len(entries) > 0
}

// BootOption reports whether the kernel was started with a word on its command line.
func (h Host) BootOption(word string) bool {
	text, _ := h.read("/proc/cmdline")
	return slices.Contains(strings.Fields(text), word)
}
