package enginebench

import (
	"time"

	"github.com/kv3fs/kv3fs/kvstore"
)

// Report is what was measured. Times are those of the simulated engine: if its time ran
// faster than the wall clock, they are longer than the wall-clock times.
type Report struct {
	Workload      string  `json:"workload"`
	Store         string  `json:"store"`
	Storage       string  `json:"storage"` // where its bytes are
	Trace         string  `json:"trace,omitempty"`
	Load          string  `json:"load"` // layers or whole
	BlockTokens   int     `json:"block_tokens"`
	Scale         int64   `json:"scale"`
	ScaleChosen   bool    `json:"scale_chosen"`                // by the bench, for this machine
	CopyGBps      float64 `json:"machine_copy_gbps,omitempty"` // that it was chosen from
	Bandwidth     float64 `json:"simulated_bytes_per_second"`  // at full size; 0: the store's own speed
	LatencyMs     float64 `json:"simulated_latency_ms"`        // of a shard
	TimeScale     float64 `json:"time_scale"`                  // how many times faster than the wall clock the engine's time ran
	Runs          int     `json:"runs,omitempty"`              // of each row
	CPUs          int     `json:"cpus"`                        // of this machine
	StartedDaemon bool    `json:"started_daemon"`              // for the bench
	Interrupted   bool    `json:"interrupted,omitempty"`       // rows that were not complete are missing
	Speed         float64 `json:"speed,omitempty"`             // of a trace; 0: as fast as possible
	WrongBytes    int     `json:"wrong_bytes"`                 // loaded, but not what was saved; the run ended there
	Seed          uint64  `json:"seed"`                        // of the prompts
	OutputTokens  int     `json:"output_tokens"`               // generated for each prompt; not of a trace that says how many
	ChunkTokens   int     `json:"chunk_tokens"`                // of a forward pass; 0: a whole prompt in each
	EngineMemory  int64   `json:"engine_memory_bytes"`         // for the engine's own prefix cache, at full size; 0: it has none
	MFU           float64 `json:"mfu,omitempty"`               // that prefill reaches; 0: as measured, by the length of the prompt
	TraceOutput   bool    `json:"trace_output,omitempty"`      // the trace says how many tokens are generated
	Order         string  `json:"order,omitempty"`             // of shared-prefix's queries
	Groups        int     `json:"groups,omitempty"`            // of shared-prefix
	Queries       int     `json:"queries_per_group,omitempty"` // of each
	Rows          []Row   `json:"rows"`

	Lost *LossError `json:"lost,omitempty"` // of all rows
}

// Row is what was measured of requests of one kind.
type Row struct {
	Name        string `json:"name"` // which pass, where a workload has several
	Model       string `json:"model"`
	Hardware    string `json:"hardware"`
	BlockBytes  int64  `json:"block_bytes"`            // scaled
	ShardBytes  int64  `json:"shard_bytes"`            // a layer of it
	InputTokens int    `json:"input_tokens,omitempty"` // of each prompt, where all are as long
	Concurrent  int    `json:"concurrent,omitempty"`   // 0: as they arrive
	Requests    int    `json:"requests"`
	Calculated  bool   `json:"calculated,omitempty"` // without a store; nothing was measured

	// Of the prompts: whole blocks, those that the engine had in its own memory, and those
	// that it loaded from the store.
	Tokens            int64   `json:"tokens"`
	Blocks            int     `json:"blocks"`
	MemoryBlocks      int     `json:"memory_blocks"`
	MemoryTokensRatio float64 `json:"memory_tokens_ratio"`
	HitBlocks         int     `json:"hit_blocks"`
	HitTokens         int64   `json:"hit_tokens"`
	HitTokensRatio    float64 `json:"hit_tokens_ratio"`
	// InfiniteTokensRatio is what a cache without limits would have had of the tokens, if
	// every request had begun after the end of the one before it.
	InfiniteTokensRatio float64 `json:"infinite_cache_tokens_ratio"`

	// Mean times to the first token: calculated for computing everything, measured, and
	// calculated for a store that takes no time and has lost nothing. If there are several runs, each is their median.
	FullMs     float64 `json:"full_compute_ttft_ms"`
	MeasuredMs float64 `json:"measured_ttft_ms"`
	IdealMs    float64 `json:"ideal_ttft_ms"`
	BoundMs    float64 `json:"bandwidth_bound_ttft_ms"` // ideal, but for the simulated bandwidth and latency
	P50Ms      float64 `json:"measured_ttft_p50_ms"`
	P99Ms      float64 `json:"measured_ttft_p99_ms"`

	Speedup      float64 `json:"speedup"`       // full compute to measured
	IdealSpeedup float64 `json:"ideal_speedup"` // full compute to ideal
	IdealShare   float64 `json:"share_of_ideal_speedup"`

	BoundShare float64 `json:"share_of_bandwidth_bound"`

	UCM         *Published `json:"ucm_published,omitempty"`
	PublishedMs float64    `json:"published_ttft_ms,omitempty"` // of the same run of random-twice, by UCM

	Serving *Serving `json:"serving"`

	HashMs       float64 `json:"hash_p50_ms"`
	LookupMs     float64 `json:"lookup_p50_ms"`
	LookupP99Ms  float64 `json:"lookup_p99_ms"`
	FirstLayerMs float64 `json:"first_layer_p50_ms"` // from the load's begin until all blocks had their first layer
	StallMs      float64 `json:"gpu_stall_mean_ms"`  // the GPU had its turn with a request and waited for its bytes

	LoadedBytes int64   `json:"loaded_bytes"`
	LoadGBps    float64 `json:"load_gbps"`           // bytes of this machine, while loads were under way
	FullGBps    float64 `json:"full_size_load_gbps"` // what that is to the simulated engine
	SavedBytes  int64   `json:"saved_bytes"`
	SaveMs      float64 `json:"save_p50_ms"` // until the first store had accepted the new blocks of a request
	LostBlocks  int     `json:"lost_blocks"` // found, but not loaded: computed instead

	// By store of the chain, the first in front; of streams of requests.
	Tiers       []Tier `json:"tiers,omitempty"`
	FailedSaves int    `json:"failed_save_shards"`

	// Of streams of requests: times to the first token at even steps from the fastest
	// to the slowest, and what happened when.
	Distribution *Distribution `json:"distribution,omitempty"`
	Timeline     []Moment      `json:"timeline,omitempty"`
}

// Tier is what a store of the chain had of what the engine loaded.
type Tier struct {
	Store        string `json:"store"`
	LoadedBytes  int64  `json:"loaded_bytes"`
	FilledBlocks int64  `json:"blocks_filled"` // that the store behind it had, and that it has kept
}

// tiersOf returns what each store of a chain had itself.
func tiersOf(s kvstore.Stats) (all []Tier) {
	loaded := s.LoadedBytes
	for at := &s; at != nil; at = at.Next {
		behind := int64(0)
		switch {
		case at.PassedBytes > 0:
			behind = at.PassedBytes
		case at.Next != nil && at.Store == "Cache":
			behind = min(at.Next.LoadedBytes, loaded)
		}
		all = append(all, Tier{at.Store, loaded - behind, at.FilledBlocks})
		loaded = behind
	}
	return all
}

// bandwidthBound reports whether bandwidth alone kept the row from the ideal.
func (r Row) bandwidthBound() bool { return r.BoundMs > 1.05*r.IdealMs }

// Published is UCM's row for the same prompts.
type Published struct {
	FullMs     float64 `json:"full_compute_ttft_ms"`
	HitMs      float64 `json:"hit80_ttft_ms"`
	Speedup    float64 `json:"speedup"`
	IdealShare float64 `json:"share_of_ideal_speedup"`
}

// Distribution has times to the first token, ascending.
type Distribution struct {
	FullMs     []float64 `json:"full_compute_ms"`
	MeasuredMs []float64 `json:"measured_ms"`
	IdealMs    []float64 `json:"ideal_ms"`
}

// Moment is a part of a stream of requests, by when their first tokens came.
type Moment struct {
	Seconds        float64 `json:"seconds"` // its end, since the stream began
	Requests       int     `json:"requests"`
	HitTokensRatio float64 `json:"hit_tokens_ratio"`
	FullGBps       float64 `json:"full_size_load_gbps"`
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
