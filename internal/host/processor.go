package host

import "strings"

// Processor returns the model of the first processor, "" where /proc/cpuinfo has none, as on aarch64.
func (h Host) Processor() string {
	text, err := h.read("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.Join(strings.Fields(value), " ")
		}
	}
	return ""
}
