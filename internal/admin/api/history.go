package api

import "slices"

// Join returns what is known once what was asked for after Measured is known, of as many steps as there were, or as later has.
// The clock may have been set meanwhile: all times are as later has them.
func (h History) Join(later History) History {
	kept, have := later.First-h.First, int64(len(h.Times))
	if h.Window != later.Window || h.StepSeconds != later.StepSeconds || kept < 0 || kept > have {
		return later // of another daemon, or too late
	}
	most := max(len(h.Times), len(later.Times))
	dropped := max(int(kept)+len(later.Times)-most, 0)
	all := later
	all.First = h.First + int64(dropped)
	times := slices.Clone(h.Times[:kept])
	if len(later.Times) > 0 {
		for i := range times {
			times[i] = later.Times[0] - (kept-int64(i))*int64(h.StepSeconds)
		}
	}
	all.Times = slices.Concat(times, later.Times)[dropped:]
	all.Series = nil
	for _, s := range later.Series {
		before := make([]*float64, kept)
		if i := slices.IndexFunc(h.Series, func(b Series) bool { return b.Name == s.Name }); i >= 0 {
			copy(before, h.Series[i].Values)
		}
		s.Values = slices.Concat(before, s.Values)[dropped:]
		all.Series = append(all.Series, s)
	}
	return all
}
