package hostsbench

import (
	"fmt"
	"io"
	"strings"

	"github.com/kv3fs/kv3fs/internal/bench/enginebench"
	"github.com/kv3fs/kv3fs/internal/bench/measure"
	"github.com/kv3fs/kv3fs/internal/bench/pagesbench"
)

// Report is what was measured.
type Report struct {
	Hosts       int     `json:"hosts"`
	Store       string  `json:"store"`
	Near        string  `json:"near"` // of the first host, and its file system
	Far         string  `json:"far"`
	CPUs        int     `json:"cpus"`
	Seed        uint64  `json:"seed"`
	Model       string  `json:"model"`
	Hardware    string  `json:"hardware"`
	Scale       int64   `json:"scale"`
	TimeScale   float64 `json:"time_scale"`
	Bandwidth   float64 `json:"simulated_bandwidth"` // bytes/s at full size; 0: the stores' own
	Groups      int     `json:"groups"`
	Queries     int     `json:"queries_per_group"`
	InputTokens int     `json:"input_tokens"`
	Output      int     `json:"output_tokens"`
	Concurrent  int     `json:"concurrent"`

	Rows     []Row                   `json:"rows"`
	Reads    []Reads                 `json:"reads,omitempty"`
	Rings    []Ring                  `json:"rings,omitempty"`
	Pages    *pagesbench.HostsReport `json:"pages,omitempty"`
	Problems []string                `json:"problems,omitempty"` // of the parts that failed
}

// Names of rows.
const (
	rowMemory = "engine memory only"
	rowWarm   = "store, warm"
	rowCold   = "store, cold start"
	rowOwn    = "store, own disk"
)

// Row is the queries of all groups, in one order on one host.
type Row struct {
	Order    string `json:"order"`
	Name     string `json:"name"`
	Host     int    `json:"host"`
	Requests int    `json:"requests"`

	// Mean times to the first token.
	FullMs     float64 `json:"full_compute_ttft_ms"`
	MeasuredMs float64 `json:"measured_ttft_ms"`
	IdealMs    float64 `json:"ideal_ttft_ms"`
	BoundMs    float64 `json:"bandwidth_bound_ttft_ms"`
	P50Ms      float64 `json:"measured_ttft_p50_ms"`
	P99Ms      float64 `json:"measured_ttft_p99_ms"`
	Speedup    float64 `json:"speedup"`
	Ideal      float64 `json:"ideal_speedup"`

	// Of the tokens of all prompts.
	HitRatio        float64 `json:"hit_tokens_ratio"`
	MemoryRatio     float64 `json:"memory_tokens_ratio"`
	RecomputedRatio float64 `json:"recomputed_tokens_ratio"` // computed, though they had been before
	LostBlocks      int     `json:"lost_blocks"`

	LookupMs float64            `json:"lookup_p50_ms"`
	Tiers    []enginebench.Tier `json:"tiers,omitempty"` // what each store had itself
}

func rowOf(order, name string, host int, r enginebench.Row) Row {
	return Row{
		Order: order, Name: name, Host: host, Requests: r.Requests,
		FullMs: r.FullMs, MeasuredMs: r.MeasuredMs, IdealMs: r.IdealMs, BoundMs: r.BoundMs, P50Ms: r.P50Ms, P99Ms: r.P99Ms,
		Speedup: r.Speedup, Ideal: r.IdealSpeedup,
		HitRatio: r.HitTokensRatio, MemoryRatio: r.MemoryTokensRatio,
		RecomputedRatio: max(0, r.InfiniteTokensRatio-r.HitTokensRatio-r.MemoryTokensRatio), LostBlocks: r.LostBlocks,
		LookupMs: r.LookupMs, Tiers: r.Tiers,
	}
}

// Reads is hosts that read from their own disks at the same time.
type Reads struct {
	Hosts     int     `json:"hosts"`
	GBps      float64 `json:"gbps"` // of all
	Scaling   float64 `json:"scaling"`
	Bound     float64 `json:"scaling_bound"` // that processors allow
	CPUPerGB  float64 `json:"cpu_s_per_gb"`
	FromNext  int64   `json:"bytes_from_next"` // should be 0
	WrongByte int     `json:"wrong_bytes"`
}

// Ring is reads of one size through rings of a daemon in shared mode, and without it.
type Ring struct {
	SizeBytes int64          `json:"size_bytes"`
	Threads   int            `json:"threads"`
	Ring      measure.Spread `json:"ring_gbps"`
	Plain     measure.Spread `json:"plain_gbps"`
	Ratio     float64        `json:"ring_to_plain"`
}

// The aims are printed beside what was measured and decide nothing: the figures depend on the
// machine.
const (
	aimRing     = 0.9
	aimFollower = 2.5
	aimKeys     = 50_000
)

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	for _, line := range r.circumstances() {
		b.WriteString(line + "\n")
	}
	if len(r.Rows) > 0 {
		b.WriteString("\n" + rowsTitle + "\n")
		write(&b, 3, rowHeads, r.rowCells())
		b.WriteString("\n" + tiersTitle + "\n")
		write(&b, 3, tierHeads, r.tierCells())
	}
	if len(r.Reads) > 0 {
		b.WriteString("\n" + readsTitle + "\n")
		write(&b, 1, readHeads, r.readCells())
	}
	if len(r.Rings) > 0 {
		b.WriteString("\n" + ringsTitle + "\n")
		write(&b, 1, ringHeads, r.ringCells())
	}
	if r.Pages != nil {
		b.WriteString("\n" + r.pagesTitle() + "\n")
		write(&b, 1, pageHeads, r.pageCells())
	}
	if warning := r.warning(); warning != "" {
		b.WriteString("\n" + warning + "\n")
	}
	for _, p := range r.Problems {
		b.WriteString("\n" + p + "\n")
	}
	_, err := io.WriteString(w, measure.Wrap(b.String()))
	return err
}

// warning says what was measured once, or is "". Rings have medians of several runs, and page services those of many requests.
func (r *Report) warning() string {
	if len(r.Rows)+len(r.Reads) == 0 {
		return ""
	}
	return "Warning: times to the first token and reads from own disks were measured once. Measure again before you trust a small difference."
}

// What the tables have.
const (
	rowsTitle  = "time to the first token, ms: median and mean; bound: the ideal at the simulated bandwidth; tokens in the engine's memory, loaded, and computed again though they had been"
	tiersTitle = "GB that each store had itself, and blocks that were kept near"
	readsTitle = "reads from the hosts' own disks, at the same time; bound: what the processors allow. Directories on one disk share that, too"
	ringsTitle = "reads through rings of a daemon with --shared on, and plain O_DIRECT reads by as many threads; GB/s, median (min-max)"
)

func (r *Report) pagesTitle() string {
	title := fmt.Sprintf("page services, one client, batches of %d keys; ms", r.Pages.Batch)
	if f := r.Pages.Failover; f != nil {
		title += fmt.Sprintf("; when the leader was ended, the longest time without an answer at %s was %.0f ms for exists and %.0f ms for allocate+confirm, and clients saw %d errors", f.URL, f.ExistsMs, f.StoreMs, f.Errors)
	}
	return title
}

// circumstances returns what the figures depend on.
func (r *Report) circumstances() []string {
	lines := []string{fmt.Sprintf("%d CPUs for all hosts", r.CPUs)}
	if len(r.Rows)+len(r.Reads) > 0 {
		lines[0] = fmt.Sprintf("%d hosts, %s; own disk %s; shared %s; %s", r.Hosts, r.Store, r.Near, r.Far, lines[0])
	}
	if len(r.Rows) > 0 {
		bandwidth := "the stores' own bandwidth"
		if r.Bandwidth > 0 {
			bandwidth = fmt.Sprintf("a simulated bandwidth of %s/s", measure.SizeText(int64(r.Bandwidth)))
		}
		lines = append(lines,
			fmt.Sprintf("%s on %s, simulated; %s; blocks at 1/%d of their bytes, time %g times as fast", r.Model, r.Hardware, bandwidth, r.Scale, r.TimeScale),
			fmt.Sprintf("%d groups of %d queries; prompts of %d tokens, the last 128 a query's own; %d out; %d at once; seed %d", r.Groups, r.Queries, r.InputTokens, r.Output, r.Concurrent, r.Seed))
	}
	return lines
}

var (
	rowHeads  = []string{"order", "", "host", "requests", "computing all", "p50", "mean", "ideal", "bound", "p99", "speed-up", "possible", "memory", "loaded", "again", "lookup"}
	tierHeads = []string{"order", "", "host", "by store", "blocks kept"}
	readHeads = []string{"hosts", "GB/s", "times one", "bound", "CPU s/GB", "aim, for information"}
	ringHeads = []string{"size", "threads", "ring", "plain", "ring/plain", "aim, for information"}
	pageHeads = []string{"service", "exists p50", "p99", "to the leader's", "allocate+confirm p50", "p99", "keys/s", "aim, for information"}
)

func percent(v float64) string { return fmt.Sprintf("%.1f%%", 100*v) }

func (r *Report) rowCells() (all [][]string) {
	ms := func(v float64) string { return fmt.Sprintf("%.0f", v) }
	for _, row := range r.Rows {
		all = append(all, []string{
			row.Order, row.Name, fmt.Sprint(row.Host), fmt.Sprint(row.Requests), ms(row.FullMs), ms(row.P50Ms), ms(row.MeasuredMs), ms(row.IdealMs), ms(row.BoundMs), ms(row.P99Ms),
			fmt.Sprintf("%.2fx", row.Speedup), fmt.Sprintf("%.2fx", row.Ideal), percent(row.MemoryRatio), percent(row.HitRatio), percent(row.RecomputedRatio), fmt.Sprintf("%.2f", row.LookupMs),
		})
	}
	return all
}

func (r *Report) tierCells() (all [][]string) {
	for _, row := range r.Rows {
		if len(row.Tiers) == 0 {
			continue
		}
		var by []string
		kept := int64(0)
		for _, t := range row.Tiers {
			by = append(by, fmt.Sprintf("%s %.3g", t.Store, float64(t.LoadedBytes)/1e9))
			kept += t.FilledBlocks
		}
		all = append(all, []string{row.Order, row.Name, fmt.Sprint(row.Host), strings.Join(by, ", "), fmt.Sprint(kept)})
	}
	return all
}

func (r *Report) readCells() (all [][]string) {
	for _, x := range r.Reads {
		aim := ""
		if x.Hosts > 1 {
			aim = "the bound"
		}
		all = append(all, []string{fmt.Sprint(x.Hosts), fmt.Sprintf("%.2f", x.GBps), fmt.Sprintf("%.2f", x.Scaling), fmt.Sprintf("%.2f", x.Bound), fmt.Sprintf("%.2f", x.CPUPerGB), aim})
	}
	return all
}

func (r *Report) ringCells() (all [][]string) {
	for _, x := range r.Rings {
		all = append(all, []string{measure.SizeText(x.SizeBytes), fmt.Sprint(x.Threads), x.Ring.Text(2), x.Plain.Text(2), fmt.Sprintf("%.2f", x.Ratio), fmt.Sprintf("at least %.1f", aimRing)})
	}
	return all
}

func (r *Report) pageCells() (all [][]string) {
	for i, s := range r.Pages.Services {
		to, aim := "-", fmt.Sprintf("at least %d keys/s", aimKeys)
		if i > 0 {
			to, aim = fmt.Sprintf("%.2f", s.ToLeader), fmt.Sprintf("at most %.1f times the leader", aimFollower)
		}
		all = append(all, []string{s.URL, fmt.Sprintf("%.3f", s.Exists.P50Ms), fmt.Sprintf("%.3f", s.Exists.P99Ms), to,
			fmt.Sprintf("%.3f", s.Store.P50Ms), fmt.Sprintf("%.3f", s.Store.P99Ms), fmt.Sprintf("%.0f", s.KeysPerSecond), aim})
	}
	return all
}

// left reports whether a column has words.
func left(head string) bool {
	switch head {
	case "order", "", "by store", "service", "aim, for information":
		return true
	}
	return false
}

// write writes a table. Its first keys columns say what a row is.
func write(b *strings.Builder, keys int, heads []string, rows [][]string) {
	t := measure.Table{Keys: keys, Rows: rows}
	for _, head := range heads {
		t.Columns = append(t.Columns, measure.Column{Head: head, Left: left(head)})
	}
	t.Write(b)
}
