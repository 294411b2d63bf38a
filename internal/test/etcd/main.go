package etcd

import (
	"flag"
	"strconv"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/leaktest"
)

// Main is leaktest.Main for packages whose tests mostly wait: for leases, elections, and members that start. So
// many of those that are parallel run at once, whatever the number of processors, unless -parallel says otherwise.
func Main(m *testing.M, parallel int) int {
	flag.Parse()
	told := false
	flag.Visit(func(f *flag.Flag) { told = told || f.Name == "test.parallel" })
	if !told {
		if err := flag.Set("test.parallel", strconv.Itoa(parallel)); err != nil {
			panic(err) // package testing has that flag
		}
	}
	return leaktest.Main(m)
}
