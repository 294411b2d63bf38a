package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"syscall"

	"github.com/kv3fs/kv3fs/internal/gpudirect"
	"github.com/kv3fs/kv3fs/internal/host"
)

// checkGDS checks what NVIDIA's gdscheck -p would: what cuFile needs besides its library,
// which checkPackages checks, and the file systems it is to store on.
func checkGDS(ctx context.Context, o *Options, e *engine) []Finding {
	all := append([]Finding{judgeNVIDIA(o.Host), judgeGDSDriver(o.Host)}, checkGDSConfig(ctx, o)...)
	if f := judgeIOMMU(o.Host); f.Status > OK {
		all = append(all, f)
	}
	gpus := o.Host.GPUs()
	for _, gpu := range gpus {
		all = append(all, judgeBAR(gpu))
	}
	if len(gpus) > 0 {
		all = append(all, judgeACS(o.Host))
	}
	return append(all, checkGDSPaths(ctx, o, e)...)
}

// Linux 6.2 introduced PCI P2PDMA for user space, with which cuFile needs no nvidia-fs.
const p2pMajor, p2pMinor = 6, 2

func judgeGDSDriver(h host.Host) Finding {
	const id = "gds.driver"
	if h.ModuleLoaded("nvidia_fs") {
		f := ok(id, "nvidia-fs is loaded")
		if version := h.NVIDIAFSVersion(); version != "" {
			f.Found = "nvidia-fs " + version + " is loaded"
		}
		return f
	}
	f := Finding{ID: id, Status: Warning, Found: "the kernel module nvidia-fs is not loaded",
		Needed: "nvidia-fs, for transfers between disk and GPU; without it cuFile copies through main memory",
		Fix:    "modprobe nvidia-fs   # from the package nvidia-gds"}
	if k, err := h.Kernel(); err == nil && k.AtLeast(p2pMajor, p2pMinor) {
		f.Needed += "; or, for NVMe, cuFile of CUDA 12.8 or later with use_pci_p2pdma: true in cufile.json, NVIDIA's open driver 565 or later, and a GPU of the data center since Ampere"
	}
	return f
}

// judgeNVIDIA judges NVIDIA's driver: GPUDirect Storage works only with its open kernel modules.
func judgeNVIDIA(h host.Host) Finding {
	const id = "gds.nvidia"
	version, open := h.NVIDIADriver()
	switch {
	case version == "":
		return Finding{ID: id, Status: Warning, Found: "no NVIDIA driver is loaded", Needed: "one: cuFile moves data to and from GPUs", Fix: "modprobe nvidia"}
	case !open:
		return Finding{ID: id, Status: Warning, Found: version, Needed: "NVIDIA's open kernel modules: GPUDirect Storage does not support the proprietary ones since 1.7", Fix: "apt install nvidia-open"}
	}
	return ok(id, "%s", version)
}

// checkGDSConfig reads cuFile's configuration.
func checkGDSConfig(ctx context.Context, o *Options) []Finding {
	const id, file = "gds.config", "/etc/cufile.json"
	path := file
	if v, set := o.Host.LookupEnv("CUFILE_ENV_PATH_JSON"); set && v != "" {
		path = v
	}
	read, err := runProbe[fileFacts](ctx, o, mountTimeout, "file", o.Host.Path(path))
	switch {
	case err != nil:
		return []Finding{unknown(id, "whether there is "+path, err)}
	case read.Err.is(syscall.ENOENT):
		return []Finding{{ID: id, Status: Note, Found: "there is no " + path,
			Needed: "nothing: cuFile uses its defaults; with allow_compat_mode: true in that file it works without nvidia-fs"}}
	case read.Err.failed() || read.Content == nil:
		return []Finding{unknown(id, "what is in "+path, errors.New(read.Err.Text+" "+read.Mode.String()))}
	}
	f, p := judgeGDSConfig(path, read.Content, o.Host.ModuleLoaded("nvidia_fs"))
	return append([]Finding{f}, judgeP2P(o.Host, path, p)...)
}

func judgeGDSConfig(path string, content []byte, driver bool) (f Finding, places p2pPlaces) {
	const id = "gds.config"
	config := struct {
		Properties struct {
			Compat      *bool `json:"allow_compat_mode"`
			ForceCompat bool  `json:"force_compat_mode"`
			P2P         bool  `json:"use_pci_p2pdma"`
		} `json:"properties"`
		Block struct {
			NVMe struct {
				P2P *bool `json:"use_pci_p2pdma"`
			} `json:"nvme"`
		} `json:"block"`
	}{}
	if err := json.Unmarshal(withoutComments(content), &config); err != nil {
		return Finding{ID: id, Status: Warning, Found: fmt.Sprintf("%s: %v", path, err), Needed: "JSON, with comments after //: cuFile does not start with what it cannot read"}, p2pPlaces{}
	}
	p := config.Properties
	places = p2pPlaces{p.P2P, config.Block.NVMe.P2P}
	compat := p.Compat == nil || *p.Compat
	switch {
	case p.ForceCompat:
		return Finding{ID: id, Status: Warning, Found: path + " has force_compat_mode: true, with which cuFile always copies through main memory", Needed: "false, for transfers between disk and GPU", Fix: "write \"force_compat_mode\": false in " + path}, places
	case !compat && !driver && !p.P2P:
		return Finding{ID: id, Status: Failure, Found: path + " has allow_compat_mode: false, and nvidia-fs is not loaded: cuFile fails (5030 when a file is opened)", Needed: "one of the two", Fix: "write \"allow_compat_mode\": true in " + path}, places
	}
	return ok(id, "%s: compatibility mode %s, PCI P2PDMA %s", path, onOff(compat), onOff(p.P2P)), places
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// withoutComments removes what follows // outside of strings, which cuFile's parser allows.
func withoutComments(text []byte) []byte {
	var kept []byte
	inString, escaped := false, false
	for i := 0; i < len(text); i++ {
		c := text[i]
		if !inString && c == '/' && i+1 < len(text) && text[i+1] == '/' {
			for i < len(text) && text[i] != '\n' {
				i++
			}
			if i == len(text) {
				break
			}
			c = '\n'
		}
		switch {
		case escaped:
			escaped = false
		case inString && c == '\\':
			escaped = true
		case c == '"':
			inString = !inString
		}
		kept = append(kept, c)
	}
	return kept
}

// judgeIOMMU judges whether transfers between devices take a detour.
func judgeIOMMU(h host.Host) Finding {
	if !h.HasIOMMU() || h.BootOption("iommu=pt") {
		return Finding{ID: "gds.iommu"}
	}
	return Finding{ID: "gds.iommu", Status: Note, Found: "an IOMMU translates addresses",
		Needed: "nothing, but transfers between disk and GPU are faster, and on some hosts only possible, without", Fix: "add iommu=pt, or iommu=off, to the kernel's command line   # not in a virtual machine"}
}

// smallBAR is the size up to which GPUs for desktops have their window for other devices.
const smallBAR = 256 << 20

func judgeBAR(gpu host.GPU) Finding {
	f := ok("gds.gpu", "%s (%s), BAR1 %s", gpu.Model, gpu.Address, bytesText(gpu.BAR1Bytes))
	switch {
	case gpu.BAR1Bytes == 0:
		return Finding{ID: f.ID, Status: Note, Found: gpu.Model + " (" + gpu.Address + "), BAR1 not known", Needed: "nothing: gdscheck -p shows it"}
	case gpu.BAR1Bytes <= smallBAR:
		f.Status, f.Needed = Warning, "a window that covers the GPU's memory, as GPUs of the data center have: cuFile stages through this one in small pieces, or copies through main memory"
		f.Fix = "enable \"above 4G decoding\" and \"resizable BAR\" in the firmware"
	}
	return f
}

// checkGDSPaths judges the file systems in which chunks are stored.
func checkGDSPaths(ctx context.Context, o *Options, e *engine) (all []Finding) {
	const id = "gds.path"
	if len(e.paths()) == 0 {
		return nil
	}
	facts, err := runProbe[[]pathFacts](ctx, o, mountTimeout, append([]string{"paths"}, e.paths()...)...)
	if err != nil {
		return []Finding{unknown(id, "the file systems of the configured directories", err)}
	}
	for _, f := range facts {
		v, err := gpudirect.Judge(o.Host, f.Canonical)
		if err != nil {
			all = append(all, unknown(id, "the file system of "+f.Path, err))
			continue
		}
		all = append(all, judgeGDSPath(f.Path, v, e.config.GDSAsked))
	}
	return all
}

// judgeGDSPath judges a directory for LMCache, which turns GPUDirect Storage off by itself only
// on tmpfs, and only if nobody asked for it: it also knows "overlayfs", but the kernel's name is
// overlay.
func judgeGDSPath(path string, v gpudirect.Verdict, asked bool) Finding {
	f := Finding{ID: "gds.path", Found: path + " " + v.Why}
	switch {
	case v.Way == gpudirect.Direct:
		return f
	case v.Way == gpudirect.Copied:
		f.Status, f.Needed = Warning, "a file system that GPUDirect Storage supports: here cuFile copies through main memory"
	case v.Type == "tmpfs" && !asked:
		f.Status, f.Needed = Warning, "another directory: LMCache turns GPUDirect Storage off by itself here, and copies through main memory"
	default:
		f.Status, f.Needed = Failure, "another directory, or use_gds: false: cuFile refuses the files (cuFileHandleRegister, 5030)"
	}
	f.Fix = v.Cure
	return f
}

// vllmUtilization is --gpu-memory-utilization's default in vLLM since 2026; it was 0.9 before.
const vllmUtilization = 0.92

// contextBytes is what CUDA's contexts and libraries take of a GPU's memory besides.
const contextBytes = 1 << 30

// gpuMemory is a GPU as nvidia-smi lists it.
type gpuMemory struct {
	name       string
	totalBytes int64
}

// checkGPUMemory compares each GPU's memory with what vLLM and the registered buffer take.
func checkGPUMemory(ctx context.Context, o *Options, e *engine) []Finding {
	const id = "gds.memory"
	if e.need.GPUBufferBytes == 0 {
		return nil
	}
	share, given := o.GPUMemoryUtilization, "as given"
	if share == 0 && e.config != nil {
		share = e.config.GPUMemoryUtilization
	}
	if share == 0 {
		share, given = vllmUtilization, "vLLM's default"
	}
	text, err := output(ctx, commandTimeout, "nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
	gpus := parseGPUs(string(text))
	if err != nil || len(gpus) == 0 {
		return []Finding{{ID: id, Status: Note, Found: "nvidia-smi shows no GPU here",
			Needed: fmt.Sprintf("on each GPU, %s for LMCache's buffer and %.0f %% (%s) for vLLM", bytesText(e.need.GPUBufferBytes), 100*share, given)}}
	}
	worst := gpus[0]
	for _, gpu := range gpus {
		if gpu.totalBytes < worst.totalBytes {
			worst = gpu
		}
	}
	f, best := judgeGPUMemory(worst, e.need.GPUBufferBytes, share, given)
	if best > 0 {
		f.Fix = engineLine(ctx, o, best)
	}
	return []Finding{f}
}

// judgeGPUMemory also returns the share of the memory that would be best for vLLM, 0 if none
// helps.
func judgeGPUMemory(gpu gpuMemory, bufferBytes int64, share float64, given string) (f Finding, best float64) {
	left := gpu.totalBytes - int64(share*float64(gpu.totalBytes))
	f = Finding{ID: "gds.memory", Found: fmt.Sprintf("%s has %s; vLLM's %.0f %% (%s) leave %s, and LMCache's buffer takes %s",
		gpu.name, bytesText(gpu.totalBytes), 100*share, given, bytesText(left), bytesDistinct(bufferBytes, left))}
	switch {
	case bufferBytes > left:
		f.Status, f.Needed = Failure, "room for both: LMCache registers its buffer first, and then vLLM finds too little memory, or the reverse"
	case bufferBytes > left-contextBytes:
		f.Status, f.Needed = Warning, "about 1 GiB more, for what CUDA itself takes"
	default:
		return f, 0
	}
	best = math.Floor(100*float64(gpu.totalBytes-bufferBytes-contextBytes)/float64(gpu.totalBytes)) / 100
	if best < 0.5 {
		f.Fix = fmt.Sprintf("write gds_buffer_size: %d", max(left-contextBytes, 0)>>20)
		return f, 0
	}
	return f, best
}

// parseGPUs reads nvidia-smi's list of names and MiB.
func parseGPUs(text string) (all []gpuMemory) {
	for line := range strings.Lines(text) {
		at := strings.LastIndexByte(line, ',')
		var mib int64
		if at < 0 {
			continue
		}
		if _, err := fmt.Sscan(line[at+1:], &mib); err != nil || mib <= 0 || mib > 1<<30 {
			continue // "[N/A]", as on GPUs that share the host's memory
		}
		all = append(all, gpuMemory{name: strings.TrimSpace(line[:at]), totalBytes: mib << 20})
	}
	return all
}
