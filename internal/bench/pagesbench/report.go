package pagesbench

import (
	"fmt"
	"io"
	"strings"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
)

// Report holds what was measured. Without a reference its fields are missing.
type Report struct {
	URL        string     `json:"url,omitempty"` // of a service that was not started for the benchmark
	FileSystem string     `json:"file_system"`
	CPUs       int        `json:"cpus"`
	Clients    int        `json:"clients"`
	Batch      int        `json:"batch"`
	Pages      int        `json:"pages"`
	Runs       int        `json:"runs"`
	RunSeconds float64    `json:"run_seconds"`
	Protocols  []Protocol `json:"protocols"`
}

// Protocol holds the figures of one protocol.
type Protocol struct {
	Name          string `json:"name"`
	Rates         []Rate `json:"rates"`
	Waits         []Wait `json:"waits"`
	Full          *Full  `json:"full,omitempty"`
	ReferenceFull *Full  `json:"reference_full,omitempty"`
}

// Rate is the throughput of many clients in requests a second. An allocation and its
// confirmation are two requests.
type Rate struct {
	Case      string          `json:"case"`
	Ours      measure.Spread  `json:"kv3fs_requests_per_s"`
	Reference *measure.Spread `json:"reference_requests_per_s,omitempty"`
	Ratio     float64         `json:"ratio,omitempty"`
	// RatioBound is the ratio that would result if the service and its clients, at their
	// processor time, had all processors of this machine and never waited.
	RatioBound         float64 `json:"ratio_bound,omitempty"`
	CPUMicros          float64 `json:"kv3fs_cpu_us_per_request"`
	ClientCPUMicros    float64 `json:"client_cpu_us_per_request"`
	ReferenceCPUMicros float64 `json:"reference_cpu_us_per_request,omitempty"`
}

// Wait is how long one client waits alone.
type Wait struct {
	Case      string   `json:"case"`
	Ours      Latency  `json:"kv3fs"`
	Reference *Latency `json:"reference,omitempty"`
}

// The aims are printed beside what was measured. They decide nothing, because the result
// depends on the machine, too.
const (
	aimRatio         = 20
	aimExistsMs      = 0.5
	aimStoreMs       = 2.0
	aimRestart       = 1.0
	aimMiBPerMillion = 400 * 1e6 / (1 << 20)
)

// WriteTable writes the report as a table.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%d clients, batches of %d keys, %d pages; median (min-max) of %d runs of %.3g s each, in turns\n", r.Clients, r.Batch, r.Pages, r.Runs, r.RunSeconds)
	if r.URL != "" {
		fmt.Fprintf(&b, "kv3fs is the service at %s, %d CPUs\n", r.URL, r.CPUs)
	} else {
		fmt.Fprintf(&b, "store on %s, %d CPUs\n", r.FileSystem, r.CPUs)
	}
	for _, p := range r.Protocols {
		t := measure.Table{Keys: 1, Columns: []measure.Column{
			{Head: p.Name, Left: true}, {Head: nameOurs, Left: true}, {Head: nameReference, Left: true}, {Head: "ratio"}, {Head: "CPU us"}, {Head: "aim, for information", Left: true},
		}}
		row := func(cells ...string) { t.Rows = append(t.Rows, cells) }
		for _, c := range p.Rates {
			reference, ratio, cpu := "-", "-", "-"
			if c.CPUMicros > 0 { // unknown for a service that the benchmark did not start
				cpu = fmt.Sprintf("%.0f+%.0f", c.CPUMicros, c.ClientCPUMicros)
			}
			aim := fmt.Sprintf("at least %d", aimRatio)
			if c.Reference != nil {
				reference, ratio = rateText(*c.Reference), fmt.Sprintf("%.1f", c.Ratio)
				cpu += fmt.Sprintf(" / %.0f", c.ReferenceCPUMicros)
				if c.Ratio < aimRatio && c.RatioBound > 0 {
					aim += fmt.Sprintf("; here at most %.1f", c.RatioBound)
				}
			}
			row(c.Case+", requests/s", rateText(c.Ours), reference, ratio, cpu, aim)
		}
		for _, c := range p.Waits {
			reference := "-"
			if c.Reference != nil {
				reference = c.Reference.text()
			}
			aim := ""
			switch c.Case {
			case "exists":
				aim = fmt.Sprintf("p50 at most %.1f", aimExistsMs)
			case "allocate+confirm":
				aim = fmt.Sprintf("p50 at most %.1f", aimStoreMs)
			}
			row(c.Case+" alone, ms p50 p99", c.Ours.text(), reference, "", "", aim)
		}
		if f := p.Full; f != nil {
			reference := "-"
			if p.ReferenceFull != nil {
				reference = fmt.Sprintf("%.0f", p.ReferenceFull.MiBPerMillion)
			}
			row("memory, MiB per million keys", fmt.Sprintf("%.0f", f.MiBPerMillion), reference, "", "", fmt.Sprintf("under %.0f (400 MB)", aimMiBPerMillion))
			row(fmt.Sprintf("restart with %.2g M keys, s", float64(f.Keys)/1e6), fmt.Sprintf("%.3f", f.RestartSeconds), "-", "", "", fmt.Sprintf("under %.0f", aimRestart))
			row("memory after it, MiB", fmt.Sprintf("%.0f", f.RestartedMiB), "-", "", "", "")
		}
		b.WriteByte('\n')
		t.Write(&b)
	}
	b.WriteString(`
CPU us: what a request takes of the processors, kv3fs + its client / reference.
here at most: the ratio if kv3fs and its clients, at what they take, had all
processors of this machine and never waited; the reference uses one at most.
exists, locate: three quarters of the keys are there. allocate+confirm: of new
keys, as two requests; the reference is emptied before each run, for it takes no
more when it is full, ours evicts. mix: of ten operations 7 exists, 2 locate,
1 allocate+confirm. restart: from kill -9 and exec to the answer that keys are there
`)
	if warning := measure.FewRuns(r.Runs); warning != "" && r.Runs > 0 {
		b.WriteString("\n" + warning + "\n")
	}
	_, err := io.WriteString(w, measure.Wrap(b.String()))
	return err
}

func rateText(s measure.Spread) string {
	return s.Text(0)
}

func (l Latency) text() string { return fmt.Sprintf("%.3f  %.3f", l.P50Ms, l.P99Ms) }
