package manual

import (
	"fmt"
	"slices"
	"strings"
)

// Metric is a metric as it is exported.
type Metric struct {
	Name   string
	Help   string
	Labels []string
}

// MetricsPage returns docs/reference/metrics.md.
func MetricsPage(all []Metric) string {
	var b strings.Builder
	b.WriteString("# Metrics\n\n" + generated)
	b.WriteString("What `/metrics` of `kv3fs serve` answers, besides those of the Go runtime (`go_`) and of the process (`process_`). Where to look first: [metrics.md](../metrics.md).\n\n")
	b.WriteString("What ends with `_total` is a counter and counts since the daemon's start. A histogram `X` is exported as `X_bucket`, `X_sum` and `X_count`. Metrics of a part that the daemon lacks (a keeper, hosts, a page service) are absent.\n\n")
	b.WriteString("| metric | labels | meaning |\n|---|---|---|\n")
	for _, m := range slices.SortedFunc(slices.Values(all), func(a, b Metric) int { return strings.Compare(a.Name, b.Name) }) {
		var labels []string
		for _, l := range m.Labels {
			labels = append(labels, codeCell(l))
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", m.Name, strings.Join(labels, ", "), cell(m.Help))
	}
	return b.String()
}
