package top

import (
	"fmt"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/admin/api"
)

// Part is one of what can be looked at.
type Part struct {
	Title string
	asks  []string // paths, besides that of the status
	lines func(a *Answers, width int) []Line
}

// Parts returns all, in the order in which they are gone through.
func Parts() []Part {
	return []Part{
		{"Overview", []string{"history"}, overview},
		{"Engines", []string{"hits", "usage"}, engines},
		{"Usage", []string{"usage"}, usage},
		{"Keeper", []string{"keeper", "curve"}, keeping},
		{"Clients", []string{"clients"}, clients},
		{"Pages", []string{"pages", "hosts"}, pages},
		{"Findings", []string{"findings"}, findings},
		{"Log", []string{"log"}, log},
	}
}

// Asks returns the paths of what a part shows.
func (p Part) Asks() []string { return append([]string{"status"}, p.asks...) }

// Lines returns what a part shows in lines that are meant for a width. They may be longer.
func (p Part) Lines(a *Answers, width int) []Line { return p.lines(a, width) }

// Head is the line above all parts.
func Head(s *api.Status) Line {
	style := Good
	switch s.Health {
	case api.Warnings:
		style = Strong
	case api.Unhealthy:
		style = Bad
	}
	return Line{span(Strong, "kv3fs %s ", s.Version), span(style, "%s", string(s.Health)), span(Plain, "  %s  up %s  pid %d", s.Mount, ageText(s.UptimeSeconds), s.PID)}
}

func overview(a *Answers, width int) (all []Line) {
	const label, value = 14, 12
	names := []struct{ series, label string }{
		{"ring_read_bytes", "read"}, {"ring_write_bytes", "write"}, {"ring_reads", "reads"}, {"ring_writes", "writes"}, {"ring_read_p50", "read p50"}, {"ring_read_p99", "read p99"},
		{"ring_write_p99", "write p99"}, {"ring_failed", "failed"}, {"hit_ratio", "hit rate"}, {"lookups", "lookups"}, {"evicted_files", "evicted files"}, {"used_bytes", "used"},
	}
	for _, n := range names {
		for _, s := range a.History.Series {
			if s.Name != n.series {
				continue
			}
			var last *float64
			for i := len(s.Values) - 1; i >= max(len(s.Values)-3, 0) && last == nil; i-- { // the newest may not be there yet
				last = s.Values[i]
			}
			all = append(all, Line{span(Faint, "%-*s", label, n.label), span(Strong, "%*s  ", value, valueText(last, s.Unit)), span(Good, "%s", spark(s.Values, width-label-value-2))})
		}
	}
	all = append(all, Line{})
	s := &a.Status
	for _, c := range s.Checks {
		if !c.Ready {
			all = append(all, line(Bad, "NOT READY  %s: %s", c.Name, c.Error))
		}
	}
	if k := s.Keeper; k != nil {
		of := "no capacity"
		if k.LimitBytes > 0 {
			part := float64(k.UsedBytes) / float64(k.LimitBytes)
			of = "of " + bytesText(k.LimitBytes) + ", " + percentText(&part)
		}
		all = append(all, line(Plain, "keeps     %s used, %s; %s files", bytesText(k.UsedBytes), of, countText(k.Files)))
	}
	if s.Space != nil {
		all = append(all, line(Plain, "disk      %s of %s free", bytesText(s.Space.FreeBytes), bytesText(s.Space.SizeBytes)))
	}
	all = append(all, line(Plain, "clients   %d processes, %d rings, %d iovs of %s", s.Clients.Processes, s.Clients.Rings, s.Clients.Iovs, bytesText(s.Clients.IovBytes)))
	all = append(all, line(Plain, "data      %s", s.Data))
	if s.Findings != nil {
		for _, f := range s.Findings.Top {
			all = append(all, line(Strong, "%-9s %s: %s", f.Status, f.ID, f.Found))
		}
	}
	return all
}

func engines(a *Answers, _ int) (all []Line) {
	all = append(all, line(Strong, "%-12s %10s %10s %10s  %s", "hit rate", "lookups", "hits", "rate", "model"))
	for _, e := range a.Hits.Engines {
		all = append(all, line(Plain, "%-12s %10s %10s %10s  %s", e.Engine, countText(e.Lookups), countText(e.Hits), percentText(e.HitRatio), e.Model))
	}
	if len(a.Hits.Engines) == 0 {
		all = append(all, line(Faint, "no engine that keeps a file per block has looked anything up yet"))
	}
	all = append(all, Line{}, line(Strong, "%-12s %10s %10s %10s  %s", "holds", "bytes", "files", "part", "model"))
	for _, e := range a.Usage.Engines {
		for _, m := range e.Models {
			all = append(all, line(Plain, "%-12s %10s %10s %10s  %s", e.Engine, bytesText(m.Bytes), countText(m.Files), partText(m.Bytes, a.Usage.Bytes), m.Model))
		}
	}
	return append(all, notKept(a.Usage.Keeps)...)
}

func partText(part, of int64) string {
	if of <= 0 {
		return "-"
	}
	ratio := float64(part) / float64(of)
	return percentText(&ratio)
}

func notKept(keeps bool) []Line {
	if keeps {
		return nil
	}
	return []Line{line(Faint, "this daemon keeps no limit, so it does not know what its files take: serve --capacity 100%% does")}
}

func usage(a *Answers, _ int) []Line {
	all := []Line{line(Strong, "%10s %10s %7s %10s  %s", "bytes", "files", "part", "quota", "directory")}
	var show func(in []api.Directory, level, more int)
	show = func(in []api.Directory, level, more int) {
		for _, d := range in {
			quota := ""
			if d.LimitBytes > 0 {
				quota = bytesText(d.LimitBytes)
			}
			name := d.Path[strings.LastIndexByte(d.Path, '/')+1:]
			all = append(all, line(Plain, "%10s %10s %7s %10s  %s%s", bytesText(d.Bytes), countText(d.Files), partText(d.Bytes, a.Usage.Bytes), quota, strings.Repeat("  ", level), name))
			show(d.Directories, level+1, d.More)
		}
		if more > 0 {
			all = append(all, line(Faint, "%10s %10s %7s %10s  %s(%d more)", "", "", "", "", strings.Repeat("  ", level), more))
		}
	}
	show(a.Usage.Directories, 0, a.Usage.More)
	if a.Usage.Keeps && !a.Usage.Complete {
		all = append(all, line(Faint, "the daemon has just started and has not seen all files yet"))
	}
	return append(all, notKept(a.Usage.Keeps)...)
}

func keeping(a *Answers, width int) (all []Line) {
	k := &a.Keeper
	if k.State == nil {
		return []Line{line(Faint, "%s", k.Why)}
	}
	all = append(all, line(Strong, "removed since the start"))
	for _, e := range k.Evictions {
		bytes := ""
		if e.Bytes != nil {
			bytes = " of " + bytesText(*e.Bytes)
		}
		all = append(all, line(Plain, "  %-10s %s files%s", e.Reason, countText(e.Files), bytes))
	}
	all = append(all, line(Plain, "writers that wait for room: %d; writes without room: %s", k.State.WaitingWriters, countText(k.State.RefusedWrites)), Line{})
	all = append(all, line(Strong, "what other capacities would have served"))
	for _, p := range a.Curve.Points {
		style, now := Plain, ""
		if p.Factor == 1 {
			style, now = Strong, " now"
		}
		all = append(all, line(style, "%10s %6.1f%% %s%s", bytesText(p.CapacityBytes), 100*p.HitRatio, strings.Repeat("█", int(p.HitRatio*float64(max(width-30, 0)))), now))
	}
	if len(a.Curve.Points) == 0 {
		all = append(all, line(Faint, "nothing was used yet that could be served"))
	}
	for _, q := range k.Quotas {
		all = append(all, line(Plain, "quota  %10s of %10s  %s", bytesText(q.UsedBytes), bytesText(q.LimitBytes), q.Path))
	}
	for _, p := range k.Pins {
		all = append(all, line(Plain, "pin    %s %s %s", p.Pattern, p.Owner, p.Model))
	}
	for _, t := range k.TTLs {
		all = append(all, line(Plain, "TTL    %10s  %s", ageText(t.UnusedSeconds), t.Pattern))
	}
	return all
}

func clients(a *Answers, _ int) []Line {
	all := []Line{line(Strong, "%8s %-12s %-16s %6s %6s %10s", "pid", "user", "program", "rings", "iovs", "iov bytes")}
	for _, c := range a.Clients.Clients {
		user := c.User
		if user == "" {
			user = fmt.Sprint(c.UID)
		}
		pid := fmt.Sprint(c.PID)
		if c.PID == 0 {
			pid = "unseen"
		}
		all = append(all, line(Plain, "%8s %-12s %-16s %6d %6d %10s", pid, user, c.Name, c.Rings, c.Iovs, bytesText(c.IovBytes)))
	}
	if a.Clients.More > 0 {
		all = append(all, line(Faint, "%8s and %d more", "", a.Clients.More))
	}
	if len(a.Clients.Clients) == 0 {
		all = append(all, line(Faint, "no process has rings or iovs"))
	}
	return all
}

func pages(a *Answers, _ int) (all []Line) {
	switch {
	case !a.Pages.Serves:
		return []Line{line(Faint, "this daemon has no page service")}
	case !a.Pages.Here:
		all = append(all, line(Faint, "another host has the page index"))
	}
	all = append(all, line(Strong, "%-24s %10s %10s %8s %10s %10s", "set", "keys", "complete", "hit rate", "pages", "free"))
	for _, s := range a.Pages.Spaces {
		var total, free int64
		for _, r := range s.Ranks {
			total += r.NumPages
			free += r.Free
		}
		name := s.Set
		if s.Namespace != "" {
			name = s.Namespace + ": " + name
		}
		all = append(all, line(Plain, "%-24s %10s %10s %8s %10s %10s", name, countText(s.Keys), countText(s.Complete), partText(s.Counters.Hits, s.Counters.Hits+s.Counters.Misses), countText(total), countText(free)))
	}
	if len(a.Pages.Spaces) == 0 {
		all = append(all, line(Faint, "no engine has initialised a rank"))
	}
	if a.Hosts.Cluster {
		all = append(all, Line{}, line(Strong, "%-20s %-24s %-10s %10s", "host", "address", "role", "lag"))
		for _, h := range a.Hosts.Hosts {
			all = append(all, line(Plain, "%-20s %-24s %-10s %10d", h.ID, h.Address, h.Role, h.Lag))
		}
		if a.Hosts.Why != "" {
			all = append(all, line(Bad, "%s", a.Hosts.Why))
		}
	}
	return all
}

func findings(a *Answers, width int) (all []Line) {
	f := &a.Findings
	switch {
	case f.Error != "":
		return []Line{line(Bad, "the doctor could not look: %s", f.Error)}
	case f.Checked == nil:
		return []Line{line(Faint, "the doctor is looking")}
	}
	for _, one := range f.Findings {
		style := Plain
		switch one.Status {
		case api.FindingFailure:
			style = Bad
		case api.FindingWarning:
			style = Strong
		case api.FindingOK:
			style = Faint
		}
		all = append(all, wrapped(style, fmt.Sprintf("%-8s %s: ", one.Status, one.ID)+one.Found, width)...)
		for _, more := range []struct{ name, text string }{{"needed", one.Needed}, {"fix", one.Fix}} {
			if more.text != "" {
				all = append(all, wrapped(Plain, "         "+more.name+": "+more.text, width)...)
			}
		}
	}
	return all
}

// wrapped breaks a text into lines of a width.
func wrapped(style Style, text string, width int) (all []Line) {
	const indent = "           "
	rest := []rune(Visible(text))
	width = max(width, 2*len(indent))
	for len(rest) > width {
		all = append(all, Line{{string(rest[:width]), style}})
		rest = append([]rune(indent), rest[width:]...)
	}
	return append(all, Line{{string(rest), style}})
}

func log(a *Answers, width int) (all []Line) {
	for i := len(a.Log.Lines) - 1; i >= 0; i-- { // the newest on top
		l := a.Log.Lines[i]
		style := Plain
		switch l.Level {
		case "warn":
			style = Strong
		case "error":
			style = Bad
		case "debug":
			style = Faint
		}
		text := fmt.Sprintf("%s %-5s %s", l.Time.Local().Format(time.TimeOnly), l.Level, l.Message)
		for _, attribute := range l.Attributes {
			text += fmt.Sprintf(" %s=%s", attribute.Key, attribute.Value)
		}
		all = append(all, wrapped(style, text, width)...)
	}
	return all
}
