package main

import (
	"strings"
	"testing"
)

// The variables of OpenTelemetry's specification mean what that says, and one that is of no use to kv3fs does not keep it from starting.
func TestTraceEndpoint(t *testing.T) {
	for _, c := range []struct{ flag, traces, all, want, unusable string }{
		{},
		{"http://a:4318", "http://b", "http://c", "http://a:4318", ""},
		{"", "http://b:4318", "http://c", "http://b:4318/", ""},
		{"", "http://b/own", "http://c", "http://b/own", ""},
		{"", "", "http://c:4318", "http://c:4318/v1/traces", ""},
		{"", "", "https://c/otlp/", "https://c/otlp/v1/traces", ""},
		{"", "", "localhost:4317", "", allVariable},
		{"", "http://user:secret@b", "", "", tracesVariable},
	} {
		t.Setenv(tracesVariable, c.traces)
		t.Setenv(allVariable, c.all)
		is, err := (&traceFlags{OTLP: c.flag, Sample: 1}).config()
		if err != nil || is.Endpoint != c.want || is.Unusable != c.unusable || (is.Why != nil) != (c.unusable != "") {
			t.Errorf("%+v: %+v, %v", c, is, err)
		}
		if is.Why != nil && strings.Contains(is.Why.Error(), "secret") {
			t.Errorf("%v", is.Why)
		}
	}
	for _, bad := range []string{"localhost:4318", "http://user:secret@a"} {
		if _, err := (&traceFlags{OTLP: bad}).config(); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
