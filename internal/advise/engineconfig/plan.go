package engineconfig

import (
	"cmp"
	"fmt"
	"math"
	"path"
	"strings"

	"github.com/kv3fs/kv3fs/internal/advise/model"
)

// plan is a deployment with everything decided: what the templates see.
type plan struct {
	Deployment
	Engine      string
	Need        Need
	Clients     int   // threads, workers, jobs or streams
	Entries     int   // of a ring
	BufferBytes int64 // of one buffer
	BlockBytes  int64 // that one rank stores for a chunk, page or block
	CacheGB     int64 // UCM: memory of its first tier
	GDSBufferMB int64 // LMCache's GDS backend: registered GPU memory

	notes, warnings []string
}

const defaultFileBytes = 100 * gib

func newPlan(engine string, d Deployment) (*plan, error) {
	d.TP = or(d.TP, 1)
	d.BlockTokens = or(d.BlockTokens, DefaultBlockTokens(engine))
	d.PageService = cmp.Or(d.PageService, vllmPageService)
	params := Params{Model: d.Model, TP: d.TP, BlockTokens: d.BlockTokens}
	if _, err := NeedOf(engine, params); err != nil {
		return nil, err
	}
	p := &plan{Deployment: d, Engine: engine}
	var assumed string
	if d.BlockTokens > 0 {
		var err error
		if p.BlockBytes, assumed, err = params.blockBytes(engine); err != nil {
			return nil, err
		}
	}
	if assumed != "" {
		p.notes = append(p.notes, "no model was named (--model NAME); the sizes are for "+assumed)
	}
	if len(p.Dirs) == 0 {
		p.Dirs = []string{p.ownDir()}
	}
	if engine == VLLM || engine == SGLang {
		if err := p.decideFile(); err != nil {
			return nil, err
		}
	}
	if engine == LMCacheGDS {
		p.GDSBufferMB = min(max(16*p.BlockBytes/mib, 1024), 8192) // some chunks under way at once
	}
	switch fixed := FixedMount(engine); {
	case fixed != "" && d.Mount != fixed:
		p.warnings = append(p.warnings, fmt.Sprintf("%s looks for the 3FS at %s only, not at %s: serve it there, or bind it there as said below", engine, fixed, d.Mount))
	case d.Unmounted && engine != LMCacheGDS:
		p.warnings = append(p.warnings, fmt.Sprintf("no 3FS is mounted at %s yet; start it before the engine: kv3fs serve --data DIR --mount %s", d.Mount, shellText(d.Mount)))
	}
	return p, p.fit(params)
}

// ownDir is a directory below the mount for this engine. vLLM and SGLang write
// nothing about the model into their keys and files, so it goes into the path.
func (p *plan) ownDir() string {
	switch p.Engine {
	case UCM, NIXL:
		return p.Mount
	case VLLM, SGLang:
		name := strings.ToLower(p.Model.Name)
		if p.Model == (model.Shape{}) {
			return path.Join(p.Mount, p.Engine)
		}
		return path.Join(p.Mount, p.Engine, fmt.Sprintf("%s-%s-tp%d", cmp.Or(name, "model"), cmp.Or(p.Model.DType, model.BF16), p.TP))
	}
	return path.Join(p.Mount, p.Engine)
}

// decideFile rounds the file of a rank down to whole pages.
func (p *plan) decideFile() error {
	asked := or(p.FileBytes, defaultFileBytes)
	pages := asked / p.BlockBytes
	if pages < 1 {
		return fmt.Errorf("a file of %s holds no page of %s (%d tokens); give it more", size(asked), size(p.BlockBytes), p.BlockTokens)
	}
	p.FileBytes = pages * p.BlockBytes
	p.notes = append(p.notes, fmt.Sprintf("a rank's file of %s keeps %d pages of %s, %d tokens in all", size(p.FileBytes), pages, size(p.BlockBytes), product(pages, int64(p.BlockTokens))))
	return nil
}

// fit takes the first choice of sizes whose need /dev/shm can meet. A tenth of it
// is left to the engine's own processes.
func (p *plan) fit(params Params) error {
	choices := p.choices()
	var first int64
	for i, c := range choices {
		c.Model, c.TP, c.BlockTokens, c.FileBytes = params.Model, params.TP, params.BlockTokens, p.FileBytes
		n, err := p.needOf(c)
		if err != nil {
			return err
		}
		p.Need, p.Clients, p.Entries, p.BufferBytes = n, c.Clients, c.Entries, c.BufferBytes
		p.CacheGB = c.BufferBytes / gib
		total := n.ShmBytes(p.TP)
		if i == 0 {
			first = total
		}
		if !p.shmFits(total) {
			continue
		}
		if i > 0 {
			p.notes = append(p.notes, fmt.Sprintf("the sizes are smaller than usual, because those take %s of /dev/shm%s; it has %s to give, of which a tenth is left to others", size(first), p.forRanks(), size(p.ShmBytes)))
		}
		return nil
	}
	total := p.Need.ShmBytes(p.TP)
	p.warnings = append(p.warnings, fmt.Sprintf(
		"even the smallest sizes take %s of /dev/shm%s; it has %s to give, of which a tenth is left to others: enlarge it to %s or more (mount -o remount,size=%d /dev/shm; a container: --shm-size; Kubernetes: an emptyDir of medium Memory)",
		size(total), p.forRanks(), size(p.ShmBytes), size(p.shmSize(total)), p.shmSize(total)))
	return nil
}

func (p *plan) forRanks() string {
	if p.TP == 1 {
		return ""
	}
	return fmt.Sprintf(" for %d ranks", p.TP)
}

// shmKnown says whether it is known what /dev/shm has to give.
func (p *plan) shmKnown() bool { return p.ShmBytes > 0 || p.ShmTaken > 0 }

// shmFits says whether /dev/shm has room for a need, for all that is known.
func (p *plan) shmFits(need int64) bool { return !p.shmKnown() || need <= p.ShmBytes/10*9 }

// shmSize is the size of /dev/shm that a need takes beside what is in it already,
// in whole gigabytes. For a need that does not fit it is above the present one.
func (p *plan) shmSize(need int64) int64 {
	if need > math.MaxInt64/4 || p.ShmTaken > math.MaxInt64/4 {
		return math.MaxInt64
	}
	return ((need/9*10+p.ShmTaken)/gib + 1) * gib
}

func (p *plan) needOf(c Params) (Need, error) {
	switch {
	case p.Engine == LMCache && p.Form == "mp":
		return lmcacheMPNeed(c), nil
	case p.Engine == RTPLLM && p.Form == "direct":
		return rtpDirectNeed(c.BufferBytes, c.BufferBytes), nil
	}
	return NeedOf(p.Engine, c)
}

// choices lists sizes that are valid, the best first, the smallest last.
func (p *plan) choices() []Params {
	switch p.Engine {
	case LMCache:
		return p.lmcacheChoices()
	case VLLM:
		return halved(vllmJobs, vllmEntries)
	case SGLang:
		return append(halved(sglangJobs, sglangEntries), Params{Clients: 1, Entries: 4}, Params{Clients: 1, Entries: 2}, Params{Clients: 1, Entries: 1})
	case UCM:
		return p.ucmChoices()
	case RTPLLM:
		if p.Form == "direct" {
			return []Params{{BufferBytes: 4 * gib}, {BufferBytes: 2 * gib}, {BufferBytes: gib}}
		}
	case Mooncake:
		return []Params{{Clients: mooncakeThreads, Entries: mooncakeShards}}
	}
	return []Params{{}}
}

func halved(clients, entries int) (all []Params) {
	for ; clients > 0; clients /= 2 {
		all = append(all, Params{Clients: clients, Entries: entries})
	}
	return all
}

// lmcacheChoices takes the smallest buffer that LMCache allows and that holds a
// chunk: a thread moves one chunk at a time, so the rest of it would lie idle.
func (p *plan) lmcacheChoices() (all []Params) {
	iov := lmcacheIov()
	chunk := min(p.BlockBytes, iov.max)
	holds := max((chunk+mib-1)/mib*mib, iov.min)
	if p.Form == "mp" { // many requests in flight share the buffer
		holds = max(holds, lmcacheIovBytes)
	}
	all = append(all, Params{Clients: lmcacheThreads, Entries: lmcacheEntries, BufferBytes: holds})
	fewest := 2
	if p.Form == "mp" {
		fewest = 1
	}
	for threads := lmcacheThreads; threads >= fewest; threads-- {
		all = append(all, Params{Clients: threads, Entries: lmcacheEntries, BufferBytes: iov.min})
	}
	return all
}

// ucmChoices: the Cache in front must hold ucmFewestBlocks. Ranks of an MLA model
// share it in /dev/shm; others have memory of their own.
func (p *plan) ucmChoices() (all []Params) {
	least := max((product(ucmFewestBlocks, p.BlockBytes)-1)/gib+1, 1)
	if !p.Model.MLA() {
		all = halved(ucmStreams, 0)
		for i := range all {
			all[i].BufferBytes = product(max(32, least), gib)
		}
		return all
	}
	for gb := int64(128); gb > least; gb = gb * 3 / 4 {
		all = append(all, Params{Clients: ucmStreams, BufferBytes: gb * gib})
	}
	for _, c := range halved(ucmStreams, 0) {
		c.BufferBytes = product(least, gib)
		all = append(all, c)
	}
	return all
}
