package dashboard

import (
	"context"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/admin/api"
	"github.com/kv3fs/kv3fs/internal/keeper"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

// fixture is a daemon for the page: the real API over values that tests choose.
type fixture struct {
	*httptest.Server
	mode  atomic.Int32
	token string
	freed atomic.Pointer[chan struct{}] // while hanging: closed when answers go on

	mu sync.Mutex
	known
}

// known is what the daemon knows.
type known struct {
	status   api.Status
	series   map[string]func(step int) *float64 // by name, of a step that ends now for 0, before for negative ones
	started  time.Time
	usage    api.Usage
	hits     api.Hits
	keeping  api.Keeping
	curve    api.Curve
	clients  api.Clients
	pages    api.Pages
	hosts    api.Hosts
	findings api.Findings
	lines    []api.LogLine
}

// What a fixture does with requests for the API.
const (
	answering int32 = iota
	failing         // answers 500
	gone            // cuts the connection
	hanging         // answers when it goes on
)

func start(t *testing.T, k known, token string) *fixture {
	f := &fixture{known: k, token: token}
	files, documents := Handler(), api.New(api.Options{Source: f, Log: f})
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.URL.Path) < len(api.Prefix) || r.URL.Path[:len(api.Prefix)] != api.Prefix {
			files.ServeHTTP(w, r)
			return
		}
		if f.token != "" && r.Header.Get("Authorization") != "Bearer "+f.token {
			http.Error(w, `{"error":"the token is missing or wrong","cure":""}`, http.StatusUnauthorized)
			return
		}
		switch f.mode.Load() {
		case failing:
			http.Error(w, `{"error":"the <b>index</b> is damaged","cure":"start the daemon again"}`, http.StatusInternalServerError)
			return
		case gone:
			panic(http.ErrAbortHandler)
		case hanging:
			select {
			case <-*f.freed.Load():
			case <-r.Context().Done():
				return
			}
		}
		documents.ServeHTTP(w, r)
	}))
	t.Cleanup(f.Close)
	return f
}

func (f *fixture) change(do func(*known)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do(&f.known)
}

func locked[T any](f *fixture, get func(*known) T) T {
	f.mu.Lock()
	defer f.mu.Unlock()
	return get(&f.known)
}

func (f *fixture) Status(context.Context) (api.Status, error) {
	return locked(f, func(k *known) api.Status { return k.status }), nil
}

func (f *fixture) History(window string, _ int64) (api.History, error) {
	steps, seconds := 600, 1
	if window == "24h" {
		steps, seconds = 1440, 60
	}
	return locked(f, func(k *known) api.History {
		h := api.History{Window: window, StepSeconds: seconds}
		now := time.Now().Unix() / int64(seconds) * int64(seconds)
		for step := 1 - steps; step <= 0; step++ {
			h.Times = append(h.Times, now+int64(step*seconds))
		}
		for name, of := range k.series {
			s := api.Series{Name: name}
			for step := 1 - steps; step <= 0; step++ {
				s.Values = append(s.Values, of(step))
			}
			h.Series = append(h.Series, s)
		}
		return h
	}), nil
}

func (f *fixture) Usage(context.Context, api.UsageQuery) (api.Usage, error) {
	return locked(f, func(k *known) api.Usage { return k.usage }), nil
}
func (f *fixture) Hits() api.Hits { return locked(f, func(k *known) api.Hits { return k.hits }) }
func (f *fixture) Keeper(context.Context) (api.Keeping, error) {
	return locked(f, func(k *known) api.Keeping { return k.keeping }), nil
}
func (f *fixture) Curve() api.Curve { return locked(f, func(k *known) api.Curve { return k.curve }) }
func (f *fixture) Clients(context.Context, int) api.Clients {
	return locked(f, func(k *known) api.Clients { return k.clients })
}
func (f *fixture) Pages(context.Context) (api.Pages, error) {
	return locked(f, func(k *known) api.Pages { return k.pages }), nil
}
func (f *fixture) Hosts(context.Context) (api.Hosts, error) {
	return locked(f, func(k *known) api.Hosts { return k.hosts }), nil
}
func (f *fixture) Findings(context.Context) api.Findings {
	return locked(f, func(k *known) api.Findings { return k.findings })
}

func (f *fixture) Lines(after uint64, most int) ([]api.LogLine, uint64) {
	return locked(f, func(k *known) []api.LogLine {
		var later []api.LogLine
		for _, l := range k.lines {
			if l.Seq > after {
				later = append(later, l)
			}
		}
		return later[max(0, len(later)-most):]
	}), 0
}

// pointer returns one to a value.
func pointer[T any](v T) *T { return &v }

// busy is a daemon with everything, as pictures show it.
func busy() known {
	now := time.Now()
	noise := func(seed uint64, step int) float64 { return rand.New(rand.NewPCG(seed, uint64(step+1e6))).Float64() }
	wave := func(seed uint64, mean, swing, period float64) func(int) *float64 {
		return func(step int) *float64 {
			v := mean + swing*math.Sin(float64(step)/period) + swing*0.55*math.Sin(float64(step)/period*2.7) + swing*0.5*(noise(seed, step)-0.5)
			return pointer(max(v, mean/50))
		}
	}
	level := func(v float64) func(int) *float64 { return func(int) *float64 { return &v } }
	finding := api.Finding{ID: "shm", Status: api.FindingWarning, Found: "/dev/shm has 64 GiB free, and engines of this host ask for 96 GiB of shared memory",
		Needed: "as much shared memory as all engines' iovs together", Fix: "mount -o remount,size=128G /dev/shm"}
	models := []api.HitRate{
		{Engine: "lmcache", Model: "meta-llama/Llama-3.3-70B-Instruct", Lookups: 1204881, Hits: 1009690, Misses: 195191},
		{Engine: "sglang-hicache", Model: "Qwen/Qwen3-235B-A22B", Lookups: 845120, Hits: 590739, Misses: 254381},
		{Engine: "lmcache", Model: "deepseek-ai/DeepSeek-V3.1", Lookups: 310442, Hits: 121072, Misses: 189370},
	}
	hits := api.Hits{}
	for i := range models {
		models[i].HitRatio = pointer(float64(models[i].Hits) / float64(models[i].Lookups))
		hits.Lookups, hits.Hits = hits.Lookups+models[i].Lookups, hits.Hits+models[i].Hits
	}
	hits.Engines, hits.HitRatio = models, pointer(float64(hits.Hits)/float64(hits.Lookups))
	usage := api.Usage{Keeps: true, Path: ".", Complete: true, Bytes: 7240 * gib, Files: 1910204, More: 3,
		Directories: []api.Directory{
			{Path: "vllm", Bytes: 3900 * gib, Files: 998112, LimitBytes: 4096 * gib, Directories: []api.Directory{{Path: "vllm/llama-70b", Bytes: 2600 * gib, Files: 665600}, {Path: "vllm/deepseek", Bytes: 1300 * gib, Files: 332512}}},
			{Path: "sglang", Bytes: 2480 * gib, Files: 634880, Directories: []api.Directory{{Path: "sglang/qwen3", Bytes: 2480 * gib, Files: 634880}}},
			{Path: "trtllm", Bytes: 560 * gib, Files: 277000},
			{Path: "scratch", Bytes: 300 * gib, Files: 212},
		},
		Engines: []api.Engine{
			{Engine: "lmcache", Bytes: 3900 * gib, Files: 998112, Models: []api.Model{
				{Model: "meta-llama/Llama-3.3-70B-Instruct", Bytes: 2600 * gib, Files: 665600, Directories: []api.Place{{Path: "vllm/llama-70b", Bytes: 1900 * gib, Files: 486400}, {Path: "vllm/llama-70b-canary", Bytes: 700 * gib, Files: 179200}}},
				{Model: "deepseek-ai/DeepSeek-V3.1", Bytes: 1300 * gib, Files: 332512, Directories: []api.Place{{Path: "vllm/deepseek", Bytes: 1300 * gib, Files: 332512}}}}},
			{Engine: "sglang-hicache", Bytes: 2480 * gib, Files: 634880, Models: []api.Model{
				{Model: "Qwen/Qwen3-235B-A22B", Bytes: 2480 * gib, Files: 634880, Directories: []api.Place{{Path: "sglang/qwen3", Bytes: 2480 * gib, Files: 634880}}}}},
			{Engine: "trtllm", Bytes: 560 * gib, Files: 277000, Models: []api.Model{{Model: "", Bytes: 560 * gib, Files: 277000, Directories: []api.Place{{Path: "trtllm", Bytes: 560 * gib, Files: 277000}}}}},
			{Engine: "", Bytes: 300 * gib, Files: 212, Models: []api.Model{{Model: "", Bytes: 300 * gib, Files: 212, Directories: []api.Place{{Path: "scratch", Bytes: 300 * gib, Files: 212}}}}},
		}}
	var curve []api.CurvePoint
	for i := range 13 {
		f := math.Pow(2, float64(i-6)/2)
		curve = append(curve, api.CurvePoint{CapacityBytes: int64(f * 8192 * gib), Factor: f, HitRatio: 0.93 - 0.62*math.Exp(-f*1.15)})
	}
	var lines []api.LogLine
	add := func(ago time.Duration, level, message string, attributes ...string) {
		l := api.LogLine{Seq: uint64(len(lines) + 1), Time: now.Add(-ago), Level: level, Message: message, Attributes: []api.Attribute{}}
		for i := 0; i+1 < len(attributes); i += 2 {
			l.Attributes = append(l.Attributes, api.Attribute{Key: attributes[i], Value: attributes[i+1]})
		}
		lines = append(lines, l)
	}
	add(50*time.Hour, "info", "serving", "mount", "/mnt/kv3fs", "data", "/srv/kv", "version", "1.3.0")
	add(49*time.Hour, "info", "metrics, health and readiness", "address", "http://127.0.0.1:9180")
	add(3*time.Hour, "info", "ring registered", "user", "vllm", "pid", "48120", "direction", "read")
	add(40*time.Minute, "warn", "slow read", "file", "vllm/llama-70b/7f3a90c1.kv", "offset", "4194304", "bytes", "2097152", "took", "812ms", "device", "790ms")
	add(12*time.Minute, "info", "evicted", "files", "5120", "bytes", "20.1 GiB", "reason", "room")
	add(90*time.Second, "error", "checksum mismatch", "file", "sglang/qwen3/00b1.bin", "offset", "0", "answer", "EIO")
	add(4*time.Second, "info", "evicted", "files", "4870", "bytes", "19.0 GiB", "reason", "room")
	ring := func(name, direction string) api.Registration {
		return api.Registration{Name: name, Kind: "ring", Direction: direction, Priority: "normal", Bytes: 132 * kib}
	}
	iov := func(name string, bytes int64) api.Registration {
		return api.Registration{Name: name, Kind: "iov", Bytes: bytes}
	}
	clients := api.Clients{ClientTotals: api.ClientTotals{Processes: 3, Rings: 20, Iovs: 3, IovBytes: 96 * gib}, Clients: []api.Client{
		{PID: 48120, UID: 1001, User: "vllm", Name: "VLLM::EngineCore", Rings: 8, Iovs: 1, IovBytes: 40 * gib, Registrations: []api.Registration{iov("vllm-iov-0", 40*gib), ring("r0", "read"), ring("w0", "write")}, More: 6},
		{PID: 48733, UID: 1001, User: "vllm", Name: "VLLM::EngineCore", Rings: 8, Iovs: 1, IovBytes: 40 * gib, Registrations: []api.Registration{iov("vllm-iov-1", 40*gib), ring("r1", "read"), ring("w1", "write")}, More: 6},
		{PID: 51007, UID: 1002, User: "sglang", Name: "python3", Rings: 4, Iovs: 1, IovBytes: 16 * gib, Registrations: []api.Registration{iov("hicache", 16*gib), ring("r2", "read"), ring("w2", "write")}, More: 2},
	}}
	bounds := []float64{60, 600, 3600, 6 * 3600, 86400, 3 * 86400}
	return known{
		started: now.Add(-50 * time.Hour),
		status: api.Status{Version: "1.3.0", PID: 4711, Host: "gpu-node-07", Identity: "gpu-node-07-a1", Started: now.Add(-50 * time.Hour), Now: now, UptimeSeconds: 50*3600 + 720,
			Mount: "/mnt/kv3fs", Data: "/srv/kv", IO: "auto", Checksums: true, Health: api.Warnings,
			Checks:    []api.Check{{Name: "mount", Ready: true}, {Name: "data directory", Ready: true}, {Name: "space", Ready: true}, {Name: "page service", Ready: true}},
			Addresses: api.Addresses{Admin: "http://127.0.0.1:9180", Pages: []string{"127.0.0.1:18000"}},
			Space:     &api.Space{SizeBytes: 10240 * gib, FreeBytes: 2900 * gib, Files: 640e6, FreeFiles: 638e6},
			Keeper:    &api.Kept{Capacity: "8TiB", LimitBytes: 8192 * gib, UsedBytes: 7240 * gib, Files: 1910204, Scanned: true},
			Rings:     api.RingTotals{Reads: 812345678, Writes: 204567890, ReadBytes: 1 << 50, WriteBytes: 1 << 48},
			Clients:   clients.ClientTotals, Findings: &api.Summary{Checked: now, Warnings: 1, Top: []api.Finding{finding}}},
		series: map[string]func(int) *float64{
			"ring_read_bytes": wave(1, 5.2*gib, 1.9*gib, 31), "ring_write_bytes": wave(2, 1.4*gib, 0.6*gib, 47),
			"ring_reads": wave(1, 5300, 1900, 31), "ring_writes": wave(2, 1420, 600, 47), "ring_failed": level(0),
			"ring_read_p50": wave(3, 310e-6, 60e-6, 25), "ring_read_p99": wave(4, 2.6e-3, 1.1e-3, 19), "ring_write_p50": wave(5, 520e-6, 90e-6, 33), "ring_write_p99": wave(6, 6.1e-3, 2.2e-3, 27),
			"hit_ratio": wave(7, 0.73, 0.06, 61), "evicted_files": wave(8, 160, 120, 40), "evicted_bytes": wave(8, 0.66*gib, 0.5*gib, 40),
			"used_bytes": func(step int) *float64 { return pointer(7240*gib + float64(step)*0.02*gib) }, "limit_bytes": level(8192 * gib), "free_bytes": func(step int) *float64 { return pointer(2900*gib - float64(step)*0.02*gib) },
			"clients": level(3), "rings": level(20), "iovs": level(3),
		},
		usage: usage, hits: hits, clients: clients, lines: lines,
		curve: api.Curve{Points: curve, HitRatio: 0.731, Uses: 421223},
		keeping: api.Keeping{Keeps: true, State: &keeper.State{Dir: "/srv/kv", Capacity: "8TiB", LimitBytes: 8192 * gib, UsedBytes: 7240 * gib, Files: 1910204, Scanned: true},
			Evictions:     []api.Eviction{{Reason: "room", Files: 4210334, Bytes: pointer(int64(16400 * gib))}, {Reason: "ttl", Files: 12011, Bytes: nil}, {Reason: "abandoned", Files: 31}, {Reason: "operator"}},
			AgeAtEviction: &api.Ages{BoundsSeconds: bounds, Files: []int64{0, 1204, 61022, 804511, 2900122, 401200, 42275}, Count: 4210334, SumSeconds: 4210334 * 40000},
			Quotas:        []api.Quota{{Path: "vllm", LimitBytes: 4096 * gib, UsedBytes: 3900 * gib, Files: 998112}, {Path: "trtllm", LimitBytes: 2048 * gib, UsedBytes: 560 * gib, Files: 277000}},
			Pins:          []api.Pin{{Pattern: "vllm/llama-70b/system-prompts/*"}}, TTLs: []api.TTL{{Pattern: "scratch/*", UnusedSeconds: 7 * 86400}}},
		pages: api.Pages{Serves: true, Here: true, Spaces: []api.PageSpace{{Namespace: "", Set: "vllm-llama-70b-tp2", World: 2, Keys: 812004, Complete: 811990, Leased: 122,
			Ranks:    []api.PageRank{{Rank: 0, NumPages: 1 << 20, Free: 236572, Keyed: 812004}, {Rank: 1, NumPages: 1 << 20, Free: 236572, Keyed: 812004}},
			Counters: api.PageCounters{Hits: 9120044, Misses: 2210991, Reserved: 2210990, Confirmed: 2210800, Evicted: 1398796}}}},
		hosts: api.Hosts{Cluster: true, Self: "gpu-node-07", Leader: "gpu-node-05", Hosts: []api.Host{
			{ID: "gpu-node-05", Address: "10.0.0.5:18001", Version: "1.3.0", Role: "leading", Applied: 88120443},
			{ID: "gpu-node-06", Address: "10.0.0.6:18001", Version: "1.3.0", Role: "following", Applied: 88120443},
			{ID: "gpu-node-07", Address: "10.0.0.7:18001", Version: "1.3.0", Role: "following", Applied: 88120431, Lag: 12, Self: true}}},
		findings: api.Findings{Checked: &now, Warnings: 1, Findings: []api.Finding{finding,
			{ID: "kernel", Status: api.FindingNote, Found: "Linux 6.1 has no FUSE passthrough: reads through the mount are copied once more", Needed: "Linux 6.9 or later"},
			{ID: "data", Status: api.FindingOK, Found: "/srv/kv is on xfs (/dev/nvme1n1, mounted at /srv)"}, {ID: "memlock", Status: api.FindingOK, Found: "no limit of locked memory"}}},
	}
}

// bare is a daemon without any part that can be absent, just started.
func bare() known {
	now := time.Now()
	return known{
		status: api.Status{Version: "1.3.0", Host: "bare", Mount: "/mnt/kv3fs", Data: "/srv/kv", Started: now, Now: now, UptimeSeconds: 3, Health: api.Healthy,
			Checks: []api.Check{{Name: "mount", Ready: true}, {Name: "space", Ready: true}}, Space: &api.Space{SizeBytes: 100 * gib, FreeBytes: 75 * gib}},
		series:  map[string]func(int) *float64{"ring_read_bytes": func(int) *float64 { return nil }},
		keeping: api.Keeping{Why: "this daemon keeps no limit: start it with --capacity"},
	}
}

// hostileNames are names that try to be more than text.
func hostileNames() []string {
	long := make([]byte, 3000)
	for i := range long {
		long[i] = 'a' + byte(i%26)
	}
	return []string{
		`<img src=x onerror="window.hacked=1">`, `"><script>window.hacked=1</script>`, `' onmouseover='window.hacked=1`, "line\nbreak\ttab\x00nul", "\u202egnp.exe\u202c\u2066\u200b",
		`javascript:window.hacked=1`, `{{constructor}}${window.hacked=1}&lt;&amp;`, string(long), "🦙 ラマ \u200fעברית",
	}
}

// hostile is a daemon in which everything that others can name has a hostile name.
func hostile() known {
	k := busy()
	names := hostileNames()
	n := -1
	next := func() string { n++; return names[n%len(names)] }
	k.status.Mount, k.status.Data, k.status.Host, k.status.Version = next(), next(), next(), next()
	k.hits.Engines, k.usage.Engines, k.usage.Directories, k.clients.Clients, k.pages.Spaces, k.hosts.Hosts, k.findings.Findings, k.lines = nil, nil, nil, nil, nil, nil, nil, nil
	k.keeping.Quotas, k.keeping.Pins, k.keeping.TTLs, k.status.Findings.Top = nil, nil, nil, nil
	k.hosts.Why, k.keeping.Why = next(), next()
	for i, name := range names {
		size := int64(i+1) * gib
		k.hits.Engines = append(k.hits.Engines, api.HitRate{Engine: name, Model: name, Lookups: 10, Hits: 5, Misses: 5, HitRatio: pointer(0.5)})
		k.usage.Engines = append(k.usage.Engines, api.Engine{Engine: name, Bytes: size, Files: 1, Models: []api.Model{{Model: name, Bytes: size, Files: 1, Directories: []api.Place{{Path: name, Bytes: size, Files: 1}}}}})
		k.usage.Directories = append(k.usage.Directories, api.Directory{Path: name, Bytes: size, Files: 1})
		k.clients.Clients = append(k.clients.Clients, api.Client{PID: i + 1, User: name, Name: name, Iovs: 1, Registrations: []api.Registration{{Name: name, Kind: "iov", Target: name, Priority: name}}})
		k.pages.Spaces = append(k.pages.Spaces, api.PageSpace{Namespace: name, Set: name})
		k.hosts.Hosts = append(k.hosts.Hosts, api.Host{ID: name, Address: name, Version: name, Role: name})
		k.keeping.Quotas = append(k.keeping.Quotas, api.Quota{Path: name, LimitBytes: gib})
		k.keeping.Pins = append(k.keeping.Pins, api.Pin{Pattern: name, Owner: name, Model: name})
		k.keeping.TTLs = append(k.keeping.TTLs, api.TTL{Pattern: name, UnusedSeconds: 60})
		f := api.Finding{ID: name, Status: api.FindingWarning, Found: name, Needed: name, Fix: name}
		k.findings.Findings, k.status.Findings.Top = append(k.findings.Findings, f), append(k.status.Findings.Top, f)
		k.lines = append(k.lines, api.LogLine{Seq: uint64(i + 1), Time: time.Now(), Level: "info", Message: name, Attributes: []api.Attribute{{Key: name, Value: name}}})
	}
	return k
}
