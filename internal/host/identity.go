package host

import (
	"encoding/hex"
	"strings"
)

// BootID returns the identity of the running kernel: the same in all its containers, and
// another one after each boot. It returns "" where the kernel does not tell.
func (h Host) BootID() string {
	id, _ := h.read("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(id)
}

// MachineID returns the identity of this machine from /etc/machine-id, which survives reboots
// and new host names; see machine-id(5). It returns "" where there is none, and in containers,
// whose file is that of their image.
func (h Host) MachineID() string {
	if h.InContainer() {
		return ""
	}
	text, _ := h.read("/etc/machine-id")
	id := strings.TrimSpace(text)
	if raw, err := hex.DecodeString(id); err != nil || len(raw) != 16 {
		return ""
	}
	return id
}
