package wire

import (
	"encoding/json"
	"testing"
)

// A data directory whose name is not UTF-8 is named as it is.
func TestDaemonJSON(t *testing.T) {
	for data, want := range map[string]string{
		"/data":            `{"version":"v","pid":7,"data":"/data","cluster":"c","io":"auto","started":"","passthrough":""}`,
		"/data/d\xffx\xfe": `{"version":"v","pid":7,"data":"/data/d\ufffdx\ufffd","cluster":"c","io":"auto","started":"","passthrough":"","data_bytes":"L2RhdGEvZP94/g=="}`,
	} {
		d := Daemon{Version: "v", PID: 7, Data: data, Cluster: "c", IO: "auto"}
		text, err := json.Marshal(d)
		if err != nil || string(text) != want {
			t.Errorf("%s, %v; want %s", text, err, want)
		}
		var again Daemon
		if err := json.Unmarshal(text, &again); err != nil || again != d {
			t.Errorf("%q: %+v, %v", data, again, err)
		}
	}
}
