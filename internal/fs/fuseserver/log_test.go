package fuseserver

import (
	"bytes"
	"log/slog"
	"testing"
)

// A reply that the kernel does not want is worth a line, unless the daemon has answered the request itself before.
func TestRepliesNotWanted(t *testing.T) {
	const unwanted = "writer: Write/Writev failed, err: 2=no such file or directory. opcode: "
	for _, c := range []struct {
		line       string
		late, says bool
	}{
		{unwanted + "IOCTL\n", false, false},
		{unwanted + "LOOKUP\n", false, true},
		{unwanted + "LOOKUP\n", true, false},
		{"writer: Write/Writev failed, err: 22=invalid argument. opcode: LOOKUP\n", true, true},
	} {
		var out bytes.Buffer
		f := &fuseLog{log: slog.New(slog.NewTextHandler(&out, nil)), late: c.late}
		if n, err := f.Write([]byte(c.line)); n != len(c.line) || err != nil {
			t.Errorf("%q: %d, %v", c.line, n, err)
		}
		if says := out.Len() > 0; says != c.says {
			t.Errorf("%q, requests answered late: %v: logged %v", c.line, c.late, says)
		}
	}
}
