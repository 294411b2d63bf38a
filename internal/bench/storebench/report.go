package storebench

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
)

// Report is what was measured.
type Report struct {
	Scratch     string  `json:"scratch"`
	FileSystem  string  `json:"file_system"`
	IO          string  `json:"io"`
	CPUs        int     `json:"cpus"`
	Runs        int     `json:"runs"`
	RunSeconds  float64 `json:"run_seconds"`
	Blocks      int     `json:"blocks"`
	BlockBytes  int64   `json:"block_bytes"`
	ShardBytes  int64   `json:"shard_bytes"`
	Depth       int     `json:"depth"`
	Keys        int     `json:"lookup_keys"`
	IndexBlocks int     `json:"index_blocks"`

	Cold    []Load    `json:"cold"`    // nothing is in the cache
	UCM     []UCMSize `json:"ucm"`     // files as UCM leaves and loads them
	Warm    []Load    `json:"warm"`    // all of it is
	Segment []Load    `json:"segment"` // from segments
	Lookups []Lookup  `json:"lookups"`

	Calls        *Calls `json:"calls_per_hit,omitempty"`
	CallsSkipped string `json:"calls_skipped,omitempty"` // why Calls is nil
}

// Load is the result of one way to load the blocks.
type Load struct {
	Way  string         `json:"way"`
	GBps measure.Spread `json:"gbps"`
}

// Lookup is how long the lookups of a store take.
type Lookup struct {
	Store string         `json:"store"`
	P50Ms measure.Spread `json:"p50_ms"`
	P99Ms measure.Spread `json:"p99_ms"`
}

// Aim is a figure with its target. It is printed and decides nothing, because it also
// depends on the machine.
type Aim struct {
	Name   string  `json:"name"`
	Value  float64 `json:"value"`
	Unit   string  `json:"unit,omitempty"`
	Target float64 `json:"target"`
	AtMost bool    `json:"at_most"` // otherwise at least
}

const (
	targetCold      = 0.85 // of the ring
	targetUCM       = 0.90 // of plain threads
	targetUCMSums   = 0.95 // of a daemon without checksums
	targetWarm      = 0.80 // of a copy
	targetChecksums = 0.10 // of the time of a load
	targetLookupMs  = 0.2
	targetCalls     = 0.0
)

// Aims returns the measured figures that have a target.
func (r *Report) Aims() []Aim {
	var all []Aim
	ratio := func(name string, loads []Load, way, to string, target float64) {
		if a, b := rateOf(loads, way), rateOf(loads, to); b > 0 {
			all = append(all, Aim{Name: name, Value: a / b, Target: target})
		}
	}
	checking := func(name string, loads []Load, checked, unchecked string) {
		if a, b := rateOf(loads, checked), rateOf(loads, unchecked); b > 0 {
			// Of a byte's time: 1/a with the checksum, 1/b without.
			all = append(all, Aim{Name: name, Value: 1 - a/b, Target: targetChecksums, AtMost: true})
		}
	}
	ratio("cold, "+WayChain+" to the ring", r.Cold, WayChain, WayRing, targetCold)
	for _, s := range r.UCM {
		ratio("cold, "+WayUCM+" to plain, "+measure.SizeText(s.BlockBytes), s.Cold, WayUCM, WayPlain, targetUCM)
	}
	for _, s := range r.UCM {
		ratio("cold, "+WayUCM+" to unchecked, "+measure.SizeText(s.BlockBytes), s.Cold, WayUCM, WayUCMNoSums, targetUCMSums)
	}
	ratio("warm, "+WayChain+" to a copy", r.Warm, WayChain, WayCopy, targetWarm)
	checking("cold, checksums' part of a load", r.Cold, WayChain, WayChainNoSums)
	checking("segment, checksums' part of a load", r.Segment, WaySegment, WaySegmentNoSums)
	for _, l := range r.Lookups {
		name := fmt.Sprintf("%s, lookup of %d keys", strings.ToLower(l.Store), r.Keys)
		all = append(all, Aim{Name: name, Value: l.P50Ms.Median, Unit: " ms", Target: targetLookupMs, AtMost: true})
	}
	if r.Calls != nil {
		all = append(all, Aim{Name: "segment, open, stat ... a hit", Value: r.Calls.PerHit(), Target: targetCalls, AtMost: true})
	}
	return all
}

func rateOf(loads []Load, way string) float64 {
	for _, l := range loads {
		if l.Way == way {
			return l.GBps.Median
		}
	}
	return 0
}

// WriteTable writes the report as text.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "loads of %d blocks of %s in shards of %s; median (min-max) of %d runs of %.3g s each, in turns\n",
		r.Blocks, measure.SizeText(r.BlockBytes), measure.SizeText(r.ShardBytes), r.Runs, r.RunSeconds)
	fmt.Fprintf(&b, "blocks on %s (%s), --io %s, %d requests in flight, %d CPUs\n\n", r.Scratch, r.FileSystem, r.IO, r.Depth, r.CPUs)
	r.writeLoads(&b, "cold: nothing in the cache", r.Cold, "to the ring")
	r.writeUCM(&b)
	r.writeLoads(&b, "warm: all in the cache", r.Warm, "to the copy")
	r.writeLoads(&b, "from segments", r.Segment, "to the first")
	if len(r.Lookups) > 0 {
		fmt.Fprintf(&b, "%-42s %-28s %s\n", fmt.Sprintf("lookup of %d keys among %d", r.Keys, r.IndexBlocks), "p50, ms", "p99, ms")
		for _, l := range r.Lookups {
			fmt.Fprintf(&b, "  %-40s %-28s %s\n", l.Store, l.P50Ms.Text(3), l.P99Ms.Text(3))
		}
		b.WriteString("\n")
	}
	switch {
	case r.Calls != nil:
		fmt.Fprintf(&b, "%d hits in segments asked for %d reads and %s\n\n", r.Calls.Hits, r.Calls.Reads, r.Calls.namesText())
	case r.CallsSkipped != "":
		fmt.Fprintf(&b, "system calls of a hit: not counted: %s\n\n", r.CallsSkipped)
	}
	if aims := r.Aims(); len(aims) > 0 {
		fmt.Fprintf(&b, "%-42s %-28s %s\n", "", "measured", "aim, for information")
		for _, a := range aims {
			word := "at least"
			if a.AtMost {
				word = "at most"
			}
			fmt.Fprintf(&b, "%-42s %-28s %s %.3g%s\n", a.Name, fmt.Sprintf("%.3f%s", a.Value, a.Unit), word, a.Target, a.Unit)
		}
	}
	if warning := measure.FewRuns(r.Runs); warning != "" && r.Runs > 0 {
		b.WriteString("\n" + warning + "\n")
	}
	_, err := io.WriteString(w, measure.Wrap(b.String()))
	return err
}

// writeLoads writes a row for each way and compares it with the first.
func (r *Report) writeLoads(b *strings.Builder, title string, loads []Load, beside string) {
	if len(loads) == 0 {
		return
	}
	fmt.Fprintf(b, "%-42s %-28s %s\n", title, "GB/s", beside)
	for _, l := range loads {
		ratio := "-"
		if first := loads[0].GBps.Median; first > 0 {
			ratio = fmt.Sprintf("%.2f", l.GBps.Median/first)
		}
		fmt.Fprintf(b, "  %-40s %-28s %s\n", l.Way, l.GBps.Text(2), ratio)
	}
	b.WriteString("\n")
}

// writeUCM writes a row for each size and state.
func (r *Report) writeUCM(b *strings.Builder) {
	if len(r.UCM) == 0 {
		return
	}
	ratio := func(loads []Load, way, to string) string {
		other := rateOf(loads, to)
		if other == 0 {
			return "-"
		}
		return fmt.Sprintf("%.2f", rateOf(loads, way)/other)
	}
	loaded := tableOf("files of UCM's, GB/s", "plain threads", "open in the mount", "UCM's way", "unchecked", "to plain", "to opening", "to unchecked")
	row := func(state string, size int64, loads []Load) {
		if len(loads) == 0 {
			return
		}
		loaded.Rows = append(loaded.Rows, []string{
			"  " + state + ", " + measure.SizeText(size),
			spreadOf(loads, WayPlain), spreadOf(loads, WayPlainOpening), spreadOf(loads, WayUCM), spreadOf(loads, WayUCMNoSums),
			ratio(loads, WayUCM, WayPlain), ratio(loads, WayUCM, WayPlainOpening), ratio(loads, WayUCM, WayUCMNoSums),
		})
	}
	for _, s := range r.UCM {
		row("cold", s.BlockBytes, s.Cold)
	}
	for _, s := range r.UCM {
		row("warm", s.BlockBytes, s.Warm)
	}
	loaded.Write(b)
	b.WriteString("\n")
	saved := tableOf("saved by UCM, GB/s", "plain threads", "UCM's way", "unchecked", "with a capacity", "with one, unchecked", "to plain", "to unchecked", "with a capacity, to both")
	for _, s := range r.UCM {
		if l := s.Save; len(l) > 0 {
			saved.Rows = append(saved.Rows, []string{
				"  " + measure.SizeText(s.BlockBytes),
				spreadOf(l, WayPlain), spreadOf(l, WayUCM), spreadOf(l, WayUCMNoSums), spreadOf(l, WayLimited), spreadOf(l, WayLimitedNoSums),
				ratio(l, WayUCM, WayPlain), ratio(l, WayUCM, WayUCMNoSums), ratio(l, WayLimited, WayPlain) + ", " + ratio(l, WayLimited, WayLimitedNoSums),
			})
		}
	}
	saved.Write(b)
	b.WriteString("\n")
}

// tableOf returns a table with the heads, all aligned left.
func tableOf(heads ...string) measure.Table {
	t := measure.Table{Keys: 1}
	for _, head := range heads {
		t.Columns = append(t.Columns, measure.Column{Head: head, Left: true})
	}
	return t
}

// spreadOf returns the rates of one way, as text.
func spreadOf(loads []Load, way string) string {
	for _, l := range loads {
		if l.Way == way {
			return l.GBps.Text(2)
		}
	}
	return "-"
}

func (c *Calls) namesText() string {
	if len(c.Names) == 0 {
		return "no call on a name or an inode"
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(c.Names)) {
		all = append(all, fmt.Sprintf("%d %s", c.Names[name], name))
	}
	return strings.Join(all, ", ")
}
