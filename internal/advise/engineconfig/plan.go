package engineconfig

import (
	"cmp"
	"fmt"
	"math"
	"path"
	"strings"

	"github.com/kv3fs/kv3fs/internal/advise/model"
	"github.com/kv3fs/kv3fs/internal/lmcachekeys"
)

// plan is a deployment with all sizes decided. It is the data of the templates.
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
	params := Params{Model: d.Model, TP: d.TP, BlockTokens: d.BlockTokens, ExtraPools: d.ExtraPools}
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
		p.notes = append(p.notes, "no model was given (--model NAME); the sizes assume "+assumed)
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
		p.GDSBufferMB = min(max(16*p.BlockBytes/mib, 1024), 8192) // for 16 chunks at once
	}
	switch fixed := FixedMount(engine); {
	case fixed != "" && d.Mount != fixed:
		p.warnings = append(p.warnings, fmt.Sprintf("%s looks for the 3FS at %s only, not at %s: serve it there, or bind-mount it there (see the notes)", engine, fixed, d.Mount))
	case d.Unmounted && engine != LMCacheGDS:
		p.warnings = append(p.warnings, fmt.Sprintf("no 3FS is mounted at %s yet; start it before the engine: kv3fs serve --data DIR --mount %s", d.Mount, shellText(d.Mount)))
	}
	return p, p.fit(params)
}

// ownDir returns a directory below the mount for this engine. The keys and files of vLLM
// and SGLang do not name the model, so the path does.
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
	given := or(p.FileBytes, defaultFileBytes)
	pages := given / p.BlockBytes
	if pages < 1 {
		return fmt.Errorf("a file of %s is too small for a page of %s (%d tokens); choose a larger file (--file-size)", size(given), size(p.BlockBytes), p.BlockTokens)
	}
	p.FileBytes = pages * p.BlockBytes
	p.notes = append(p.notes, fmt.Sprintf("a rank's file of %s keeps %d pages of %s, %d tokens in all", size(p.FileBytes), pages, size(p.BlockBytes), product(pages, int64(p.BlockTokens))))
	if p.ExtraPools > 0 {
		p.notes = append(p.notes, fmt.Sprintf("each extra pool has a further file of this size and its own clients: %s of files for a rank", size(product(p.FileBytes, int64(1+p.ExtraPools)))))
	}
	return nil
}

// fit chooses the first of the possible sizes that fits into /dev/shm. It leaves a tenth
// of the free space to other uses.
func (p *plan) fit(params Params) error {
	choices := p.choices()
	var first int64
	for i, c := range choices {
		c.Model, c.TP, c.BlockTokens, c.FileBytes, c.ExtraPools = params.Model, params.TP, params.BlockTokens, p.FileBytes, params.ExtraPools
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
			p.notes = append(p.notes, fmt.Sprintf("the sizes are smaller than usual: the usual ones take %s of /dev/shm%s; it has %s free, of which a tenth is left to other uses", size(first), p.forRanks(), size(p.ShmFreeBytes)))
		}
		return nil
	}
	total := p.Need.ShmBytes(p.TP)
	p.warnings = append(p.warnings, fmt.Sprintf(
		"even the smallest sizes take %s of /dev/shm%s; it has %s free, of which a tenth is left to other uses: enlarge it to %s or more (mount -o remount,size=%d /dev/shm; in a container: --shm-size; in Kubernetes: an emptyDir of medium Memory)",
		size(total), p.forRanks(), size(p.ShmFreeBytes), size(p.shmSize(total)), p.shmSize(total)))
	return nil
}

func (p *plan) forRanks() string {
	if p.TP == 1 {
		return ""
	}
	return fmt.Sprintf(" for %d ranks", p.TP)
}

// shmKnown reports whether the size of /dev/shm is known.
func (p *plan) shmKnown() bool { return p.ShmFreeBytes > 0 || p.ShmUsedBytes > 0 }

// shmFits reports whether a need fits into /dev/shm, or whether its size is unknown.
func (p *plan) shmFits(need int64) bool { return !p.shmKnown() || need <= p.ShmFreeBytes/10*9 }

// shmSize returns the size that /dev/shm must have, in whole GiB, to hold a need and its
// present content. For a need that does not fit, it exceeds the present size.
func (p *plan) shmSize(need int64) int64 {
	if need > math.MaxInt64/4 || p.ShmUsedBytes > math.MaxInt64/4 {
		return math.MaxInt64
	}
	return ((need/9*10+p.ShmUsedBytes)/gib + 1) * gib
}

// needOf returns the need of the plan's engine and form with the sizes of c.
func (p *plan) needOf(c Params) (Need, error) {
	switch {
	case p.Engine == LMCache && p.Form == "mp":
		return lmcacheMPNeed(c), nil
	case p.Engine == RTPLLM && p.Form == "direct":
		return rtpDirectNeed(c.BufferBytes, c.BufferBytes), nil
	}
	return NeedOf(p.Engine, c)
}

// choices lists valid sizes, from the best to the smallest.
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

// halved lists sizes with ever fewer clients, down to one.
func halved(clients, entries int) (all []Params) {
	for ; clients > 0; clients /= 2 {
		all = append(all, Params{Clients: clients, Entries: entries})
	}
	return all
}

// lmcacheChoices prefers LMCache's default, or more where a chunk is larger, then the smallest
// buffer that LMCache allows and that holds a chunk: a thread moves one chunk at a time, so it
// would not use a larger one.
func (p *plan) lmcacheChoices() (all []Params) {
	least, most, _ := lmcachekeys.RangeOf("iov_size")
	chunk := min(p.BlockBytes, most)
	holds := max((chunk+mib-1)/mib*mib, least)
	all = append(all, Params{Clients: lmcacheThreads, Entries: lmcacheEntries, BufferBytes: max(holds, lmcacheIovBytes)})
	if holds < lmcacheIovBytes && p.Form != "mp" { // there, many requests in flight share the buffer
		all = append(all, Params{Clients: lmcacheThreads, Entries: lmcacheEntries, BufferBytes: holds})
	}
	fewest := 2
	if p.Form == "mp" {
		fewest = 1
	}
	for threads := lmcacheThreads; threads >= fewest; threads-- {
		all = append(all, Params{Clients: threads, Entries: lmcacheEntries, BufferBytes: least})
	}
	return all
}

// ucmChoices lists sizes at which the Cache in front holds ucmFewestBlocks. Ranks of an
// MLA model share the Cache in /dev/shm; ranks of other models have their own memory.
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
