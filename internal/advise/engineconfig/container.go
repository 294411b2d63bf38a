package engineconfig

// What the templates of containers need to know of a plan.

// engineMemoryGiB is room for an engine besides its shared memory: the model is loaded through
// host memory.
const engineMemoryGiB = 32

// ShmGiB returns the size of a container's /dev/shm in GiB: what all ranks create there, and a
// quarter for others, as RTP-LLM's page reckons (40 GB for four ranks of 8 GB).
func (p *plan) ShmGiB() int64 {
	total := p.Need.ShmBytes(p.TP)
	return (total-1)/gib + 1 + ((total/4)-1)/gib + 1
}

// MemoryGiB returns the least memory limit of a container: what is in its /dev/shm counts.
func (p *plan) MemoryGiB() int64 { return p.ShmGiB() + engineMemoryGiB }

// EnvFile is the name of the section with the environment.
func (p *plan) EnvFile() string { return sections(p.Engine, p.Form)[0].template }

// RootDir is the directory below RTP-LLM's mount point that must exist.
func (p *plan) RootDir() string {
	if p.Form == "direct" {
		return rtpRootDir
	}
	return kvcmRootDir
}
