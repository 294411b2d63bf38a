package daemon

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
)

// Metric describes a metric of a daemon.
type Metric struct {
	Name   string
	Help   string
	Labels []string
}

// Metrics returns all metrics that a daemon may export, besides those of the Go runtime and of the process.
func Metrics() ([]Metric, error) {
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		for _, c := range append([]prometheus.Collector{
			newRingMetrics(nil), newChecksumMetrics(nil), newKeeperMetrics(nil), newLookupMetrics(nil), newClientMetrics(nil), newMountMetrics(nil), newClusterMetrics(nil),
			newDataSpace("."), healthMetric(nil), buildInfo(""),
		}, httpserver.Collectors()...) {
			c.Describe(descs)
		}
	}()
	var all []Metric
	var wrong error
	for d := range descs {
		m, err := describe(d.String())
		all, wrong = append(all, m), cmp.Or(wrong, err)
	}
	return all, wrong
}

// description is how a description prints itself, the only way in which it tells what is in it.
var description = regexp.MustCompile(`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"),(?: unit: "[^"]*",)? constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

func describe(text string) (Metric, error) {
	found := description.FindStringSubmatch(text)
	if found == nil {
		return Metric{}, fmt.Errorf("the Prometheus library describes metrics in a form that is not known here: %s", text)
	}
	name, _ := strconv.Unquote(found[1])
	help, _ := strconv.Unquote(found[2])
	m := Metric{Name: name, Help: help}
	for _, constant := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(found[3], -1) {
		m.Labels = append(m.Labels, constant[1])
	}
	if found[4] != "" {
		m.Labels = append(m.Labels, strings.Split(found[4], ",")...)
	}
	return m, nil
}
