package doctor

import (
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/kv3fs/kv3fs/internal/host"
)

// p2pPlaces are the two places of cufile.json that turn on PCI P2PDMA for local NVMe disks.
type p2pPlaces struct {
	properties bool
	block      *bool // block.nvme; nil: not there
}

func (p p2pPlaces) on() bool { return p.properties || p.block != nil && *p.block }

// judgeP2P judges what PCI P2PDMA needs that cuFile is told to use: NVIDIA's "NVMe P2PDMA
// Troubleshooting" and "GDS Support for NVMe" (release 615).
func judgeP2P(h host.Host, path string, p p2pPlaces) (all []Finding) {
	if !p.on() {
		return nil
	}
	all = append(all, judgeP2PPlaces(path, p))
	if runtime.GOARCH == "amd64" { // elsewhere, the driver needs no settings
		all = append(all, judgeMultipath(h), judgeNVIDIARegistry(h))
	}
	return all
}

func judgeP2PPlaces(path string, p p2pPlaces) Finding {
	const id = "gds.p2pdma"
	switch {
	case !p.properties:
		return Finding{ID: id, Status: Warning, Found: path + " has use_pci_p2pdma below block.nvme, but not in properties", Needed: "both: the first alone changes nothing",
			Fix: "write \"use_pci_p2pdma\": true below \"properties\" in " + path}
	case p.block == nil || !*p.block:
		return Finding{ID: id, Status: Warning, Found: path + " has use_pci_p2pdma in properties, but not below block.nvme", Needed: "both, for local NVMe disks, in cuFile of CUDA 13; below block.nvmeof for those of others",
			Fix: "write \"block\": {\"nvme\": {\"use_pci_p2pdma\": true}} at the top level of " + path}
	}
	return ok(id, "%s has use_pci_p2pdma in both places", path)
}

// initramfs makes the kernel read files of /etc/modprobe.d when it starts.
const initramfs = "{ command -v update-initramfs >/dev/null && update-initramfs -u || dracut -f; }   # as root; then reboot"

func judgeMultipath(h host.Host) Finding {
	const id = "gds.multipath"
	if h.NVMeMultipath() {
		return Finding{ID: id, Status: Warning, Found: "nvme_core joins the paths to a disk (multipath=Y)", Needed: "multipath=N: without a patch, the kernel has no PCI P2PDMA with it",
			Fix: "echo options nvme_core multipath=N >> /etc/modprobe.d/nvme.conf && " + initramfs}
	}
	return ok(id, "nvme_core does not join paths")
}

// judgeNVIDIARegistry judges the driver's settings that let disks reach the GPU's memory: its
// window covers all of it, and is not write-combined.
func judgeNVIDIARegistry(h host.Host) Finding {
	const id = "gds.registry"
	set := h.NVIDIARegistry()
	var missing []string
	for _, name := range []string{"RMForceStaticBar1", "RmForceDisableIomapWC"} {
		named := func(word string) bool {
			key, _, _ := strings.Cut(word, "=")
			return strings.EqualFold(key, name)
		}
		on := func(word string) bool {
			_, value, _ := strings.Cut(word, "=")
			return named(word) && value != "0" && value != "0x0"
		}
		if !slices.ContainsFunc(set, on) {
			missing = append(missing, name+"=1")
			set = slices.DeleteFunc(set, named)
		}
	}
	if len(missing) == 0 {
		return ok(id, "NVIDIA's driver has RMForceStaticBar1 and RmForceDisableIomapWC")
	}
	options := fmt.Sprintf("options nvidia NVreg_RegistryDwords=\"%s;\"", strings.Join(append(set, missing...), ";"))
	return Finding{ID: id, Status: Warning, Found: "NVIDIA's driver was loaded without " + strings.Join(missing, " and "), Needed: "both, in one RegistryDwords: disks do not reach the GPU's memory otherwise",
		Fix: "echo " + quote(options) + " > /etc/modprobe.d/nvidia-p2pdma.conf && " + initramfs}
}

// mostBridges is how many bridges a finding names.
const mostBridges = 4

// judgeACS judges whether bridges send transfers between devices below them up to the CPU.
func judgeACS(h host.Host) Finding {
	const id = "gds.acs"
	bridges, complete := h.ACSBridges()
	switch {
	case len(bridges) > 0:
		named := strings.Join(bridges[:min(len(bridges), mostBridges)], ", ")
		if len(bridges) > mostBridges {
			named += fmt.Sprintf(" and %d more", len(bridges)-mostBridges)
		}
		return Finding{ID: id, Status: Warning, Found: "ACS is on for the PCI bridges " + named, Needed: "ACS off where disks and GPUs share a switch: with it, transfers between them go up to the CPU and back",
			Fix: "for b in " + strings.Join(bridges, " ") + "; do setpci -s $b ECAP_ACS+6.w=0; done   # as root, until the next start; not where virtual machines have devices of this host"}
	case !complete:
		return Finding{ID: id, Status: Note, Found: "only root can see whether PCI bridges have ACS on", Needed: "nothing, but where disks and GPUs share a switch, transfers are faster without", Fix: "sudo kv3fs doctor"}
	}
	return ok(id, "no PCI bridge redirects transfers between devices")
}
