package ringbench

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
)

// Report is what was measured.
type Report struct {
	Data       string  `json:"data"`
	FileSystem string  `json:"file_system"`
	IO         string  `json:"io"`
	Started    bool    `json:"started_daemon"`
	CPUs       int     `json:"cpus"`
	Runs       int     `json:"runs"`
	RunSeconds float64 `json:"run_seconds"`
	FileBytes  int64   `json:"file_bytes"`
	Setup      Setup   `json:"setup"`
	Cases      []Case  `json:"cases"`
}

// Case is one kind of request, by all contenders.
type Case struct {
	Op        string `json:"op"`
	SizeBytes int64  `json:"size_bytes"`
	Rings     int    `json:"rings"`
	Depth     int    `json:"depth"`
	Threads   int    `json:"threads"` // of the mount and of the plain loop

	Ring  measure.Spread  `json:"ring_gbps"`
	Mount measure.Spread  `json:"mount_gbps"`
	Plain measure.Spread  `json:"plain_gbps"`
	Fio   *measure.Spread `json:"fio_io_uring_gbps,omitempty"`

	// Sums is of rings of a daemon that keeps checksums, beside one that keeps none.
	Sums       *measure.Spread `json:"ring_checksums_gbps,omitempty"`
	SumsToRing float64         `json:"ring_checksums_to_ring,omitempty"`
	// Compared is the part of what it read that was compared with its checksums. Requests smaller than a checksum's range never are.
	Compared *float64 `json:"ring_checksums_compared,omitempty"`

	// Scraped is of the same rings while the daemon's metrics are read and a dashboard is open, beside runs in which that is not so.
	Scraped       *measure.Spread `json:"ring_scraped_gbps,omitempty"`
	ScrapedToRing float64         `json:"ring_scraped_to_ring,omitempty"`

	// Restart is of rings of a daemon that outlive it, beside those of one whose rings end with it.
	Restart       *measure.Spread `json:"ring_restart_gbps,omitempty"`
	RestartToRing float64         `json:"ring_restart_to_ring,omitempty"`

	RingToPlain  float64 `json:"ring_to_plain"`
	MountToPlain float64 `json:"mount_to_plain"`
}

func caseOf(c testCase, rates map[string][]float64) Case {
	out := Case{
		Op: c.op(), SizeBytes: c.sizeBytes, Rings: c.rings, Depth: c.depth, Threads: c.threads,
		Ring: measure.SpreadOf(rates[nameRing]), Mount: measure.SpreadOf(rates[nameMount]), Plain: measure.SpreadOf(rates[namePlain]),
	}
	if f := rates[nameFio]; len(f) > 0 {
		s := measure.SpreadOf(f)
		out.Fio = &s
	}
	out.Sums, out.SumsToRing = out.besideRing(rates[nameSums])
	out.Scraped, out.ScrapedToRing = out.besideRing(rates[nameScraped])
	out.Restart, out.RestartToRing = out.besideRing(rates[nameRestart])
	if out.Plain.Median > 0 {
		out.RingToPlain = out.Ring.Median / out.Plain.Median
		out.MountToPlain = out.Mount.Median / out.Plain.Median
	}
	return out
}

// besideRing returns how rates compare with those of the ring; nil: there are none.
func (c *Case) besideRing(rates []float64) (*measure.Spread, float64) {
	if len(rates) == 0 {
		return nil, 0
	}
	s := measure.SpreadOf(rates)
	if c.Ring.Median <= 0 {
		return &s, 0
	}
	return &s, s.Median / c.Ring.Median
}

func rateText(s measure.Spread) string {
	digits := 2
	if s.Max < 1 {
		digits = 3
	}
	return s.Text(digits)
}

// The aims. They are printed beside what was measured and decide nothing: the figures
// depend on the machine.
const (
	targetRatioLarge = 0.90 // at 1 MiB and 4 MiB, depth 32
	targetRatioSmall = 0.60 // 4 KiB reads at depth 64, as many plain threads as rings
	targetSumsDisk   = 0.95
	targetSumsMemory = 0.85
	targetScraped    = 0.98
	targetRestart    = 0.95 // below 128 KiB
	targetRestartBig = 0.99
	targetRingMs     = 0.5
	targetIovMs      = 5.0
)

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "GB/s, median (min-max) of %d runs of %.3g s each, in turns; random offsets in files of %s\n", r.Runs, r.RunSeconds, measure.SizeText(r.FileBytes))
	fmt.Fprintf(&b, "data on %s (%s), --io %s, %d CPUs\n\n", r.Data, r.FileSystem, r.IO, r.CPUs)

	if len(r.Cases) > 0 {
		r.writeCases(&b)
	}
	b.WriteString(fmt.Sprintf("%-34s %-24s %s", "set-up, median (min-max)", "", "target, for information") + "\n")
	ms := func(s measure.Spread) string { return fmt.Sprintf("%.3f (%.3f-%.3f) ms", s.Median, s.Min, s.Max) }
	fmt.Fprintf(&b, "%-34s %-24s at most %.1f ms\n", "ring of 128, create and destroy", ms(r.Setup.RingMs), targetRingMs)
	if r.Setup.BigIovMs != nil {
		fmt.Fprintf(&b, "%-34s %-24s at most %.1f ms\n", "iov of 4 GiB, register", ms(*r.Setup.BigIovMs), targetIovMs)
	} else {
		fmt.Fprintf(&b, "%-34s skipped: %s\n", "iov of 4 GiB, register", r.Setup.BigIovSkipped)
	}
	for _, c := range r.Cases {
		name := fmt.Sprintf("ring/plain, %s of %s", c.Op, measure.SizeText(c.SizeBytes))
		if c.Sums != nil {
			target := ""
			if c.SizeBytes == 1<<20 {
				target = fmt.Sprintf("at least %.2f on a disk, %.2f in memory", targetSumsDisk, targetSumsMemory)
			}
			sums := fmt.Sprintf("checksums/ring, %s of %s", c.Op, measure.SizeText(c.SizeBytes))
			fmt.Fprintf(&b, "%-34s %-24s %s\n", sums, fmt.Sprintf("%.2f (%s GB/s)", c.SumsToRing, rateText(*c.Sums)), target)
			if c.Compared != nil {
				fmt.Fprintf(&b, "%-34s %.2f\n", "  of it compared with checksums", *c.Compared)
			}
		}
		if c.Scraped != nil {
			scraped := fmt.Sprintf("scraped/ring, %s of %s", c.Op, measure.SizeText(c.SizeBytes))
			fmt.Fprintf(&b, "%-34s %-24s at least %.2f\n", scraped, fmt.Sprintf("%.2f (%s GB/s)", c.ScrapedToRing, rateText(*c.Scraped)), targetScraped)
		}
		if c.Restart != nil {
			target := targetRestart
			if c.SizeBytes >= smallBytes {
				target = targetRestartBig
			}
			restart := fmt.Sprintf("restart/ring, %s of %s", c.Op, measure.SizeText(c.SizeBytes))
			fmt.Fprintf(&b, "%-34s %-24s at least %.2f\n", restart, fmt.Sprintf("%.3f (%s GB/s)", c.RestartToRing, rateText(*c.Restart)), target)
		}
		switch {
		case c.SizeBytes >= 1<<20:
			fmt.Fprintf(&b, "%-34s %-24s at least %.2f\n", name, fmt.Sprintf("%.2f", c.RingToPlain), targetRatioLarge)
		case c.SizeBytes == 4<<10 && c.Op == "read":
			fmt.Fprintf(&b, "%-34s %-24s at least %.2f\n", name, fmt.Sprintf("%.2f", c.RingToPlain), targetRatioSmall)
		}
	}
	if warning := measure.FewRuns(r.Runs); warning != "" && r.Runs > 0 {
		b.WriteString("\n" + warning + "\n")
	}
	_, err := io.WriteString(w, measure.Wrap(b.String()))
	return err
}

// writeCases writes a row for each case.
func (r *Report) writeCases(b *strings.Builder) {
	t := measure.Table{Keys: 3, Columns: []measure.Column{
		{Head: "op", Left: true}, {Head: "size"}, {Head: "in flight/threads"}, {Head: "ring", Left: true}, {Head: "mount", Left: true}, {Head: "plain", Left: true},
		{Head: "ring/plain"}, {Head: "mount/plain"},
	}}
	withFio := slices.ContainsFunc(r.Cases, func(c Case) bool { return c.Fio != nil })
	if withFio {
		t.Columns = append(t.Columns, measure.Column{Head: "fio io_uring", Left: true})
	}
	for _, c := range r.Cases {
		row := []string{
			c.Op, measure.SizeText(c.SizeBytes), fmt.Sprintf("%d / %d", c.Rings*c.Depth, c.Threads), rateText(c.Ring), rateText(c.Mount), rateText(c.Plain),
			fmt.Sprintf("%.2f", c.RingToPlain), fmt.Sprintf("%.2f", c.MountToPlain),
		}
		switch {
		case c.Fio != nil:
			row = append(row, rateText(*c.Fio))
		case withFio:
			row = append(row, "-")
		}
		t.Rows = append(t.Rows, row)
	}
	t.Write(b)
	b.WriteString(`
in flight: requests that the rings and fio have under way; threads: of the mount
and of the plain pread/pwrite loop on the data directory

`)
}
