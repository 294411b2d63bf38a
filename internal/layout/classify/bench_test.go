package classify

import "testing"

// BenchmarkClassify classifies the paths of the table in turn, and those that most files of a
// directory have: a million of them have to take about a second.
func BenchmarkClassify(b *testing.B) {
	var all []row
	for _, rows := range table {
		all = append(all, rows...)
	}
	for name, rows := range map[string][]row{
		"the table": all,
		"chunks":    {{path: "a/" + chunk + ".data"}},
		"objects":   {{path: "00/11/" + object + ".data"}},
		"pairs":     {{path: "66/63/" + pair}, {path: "66/63/" + pair + ".metadata"}},
		"ucm":       {{path: "m/01/" + key, in: Context{Above: DotTemp}}, {path: "a/012/" + key}},
		"rtp-llm":   {{path: rtpDir + "/-5_77"}},
		"kvcm":      {{path: "kv/17/tp1_F0/3f"}},
		"unknown":   {{path: "a/b/c/notes.txt"}, {path: "deadbeef.bin.gz"}},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				r := &rows[i%len(rows)]
				_ = Classify(r.path, r.in)
			}
		})
	}
}
