package httpserver

import "testing"

// TestShed: what a slow reader of an answer keeps in memory is bounded, and a request of 512 keys is not dropped for that.
func TestShed(t *testing.T) {
	for what, c := range map[string]struct {
		of   func(*call)
		kept bool
	}{
		"512 keys":         {func(c *call) { c.body, c.keys.items = make([]byte, 36<<10), make([]string, 512) }, true},
		"a large body":     {func(c *call) { c.body = make([]byte, shedBody+1) }, false},
		"many short keys":  {func(c *call) { c.body, c.keys.items = make([]byte, 16<<10), make([]string, shedItems+1) }, false},
		"many short names": {func(c *call) { c.body, c.parser.names = make([]byte, 16<<10), make([]string, shedItems+1) }, false},
		"many levels":      {func(c *call) { c.body, c.parser.levels = make([]byte, 16<<10), make([]level, shedItems+1) }, false},
		"a large answer":   {func(c *call) { c.body, c.out = make([]byte, 100), make([]byte, shedAnswer+1) }, false},
	} {
		x := &call{}
		c.of(x)
		x.shed()
		if kept := x.body != nil; kept != c.kept {
			t.Errorf("%s: kept %v", what, kept)
		}
	}
}
