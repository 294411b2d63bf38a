package main

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
)

func planned(args ...string) (status int, out, errs string) {
	var o, e bytes.Buffer
	status = run(append([]string{"plan"}, args...), &o, &e)
	return status, o.String(), e.String()
}

// The whole report, as text.
func TestPlan(t *testing.T) {
	const want = `Over 3fs (42.9 GB/s), loading is faster from 128 tokens on; at 32,000 tokens with 80% hit, TTFT falls from 2.54 s to 769 ms, or to 615 ms if layers load while others are computed (3.3 and 4.1 times faster, ideal 4.2).

instance           QwQ-32B on 2xH100, TP 2, KV in bf16
prefill            12,576 tokens/s at 32,000 tokens: 1978 TFLOPS, MFU 0.55 (as UCM measured it)
KV per token       256 KiB of the instance, 128 KiB on each rank
KV of the context  7.81 GiB, in blocks of 32.0 MiB (128 tokens)
break even         3.30 GB/s: below it, loading the context takes longer than computing it
capacity           10.0 TiB hold 41,943,040 tokens, 1,310 conversations of 32,000

TTFT over 3fs (42.9 GB/s), 80% hit:
   tokens   to load  break even  compute   loaded  overlapped    ideal  speed-up  bound by
    4,096   800 MiB   3.91 GB/s   275 ms  86.4 ms     67.2 ms  61.9 ms      4.09   compute
    8,192  1.59 GiB   3.92 GB/s   547 ms   163 ms      124 ms   118 ms      4.43   compute
   16,384  3.19 GiB   3.65 GB/s   1.18 s   350 ms      272 ms   265 ms      4.33   compute
   32,000  6.25 GiB   3.30 GB/s   2.54 s   769 ms      615 ms   608 ms      4.14   compute
   32,768  6.38 GiB   3.28 GB/s   2.62 s   801 ms      644 ms   637 ms      4.07   compute
   65,536  12.8 GiB   2.63 GB/s   6.53 s   2.05 s      1.74 s   1.73 s      3.76   compute
  131,072  25.6 GiB   1.88 GB/s   18.2 s   5.95 s      5.32 s   5.31 s      3.43   compute
`
	status, out, errs := planned("--model", "Qwen/QwQ-32B", "--gpu", "2xH100", "--context", "32000", "--capacity", "10TiB")
	if status != 0 || out != want {
		t.Errorf("exit %d, %s\n%s\nwant\n%s", status, errs, out, want)
	}
}

func TestPlanAnswers(t *testing.T) {
	coder := []string{"--model", "Qwen3-Coder-480B-A35B", "--gpu", "8xH100"}
	byHand := []string{"--layers", "62", "--kv-heads", "8", "--head-dim", "128", "--query-heads", "96", "--params", "35B", "--gpu", "H100", "--gpus", "8"}
	for _, c := range []struct {
		args []string
		want []string
	}{
		// Section 3.3 of the project's study: over 13 GB/s at 4K, 100GbE loses there.
		{append(coder, "--bandwidth", "100gbe", "--context", "4Ki"), []string{"Over 100gbe (12.5 GB/s), loading is faster from 8,448 tokens on; at 4,096 tokens with 80% hit, TTFT falls from 78.9 ms to 70.6 ms only if layers load while others are computed."}},
		{append(coder, "--bandwidth", "4GB/s"), []string{"Over 4GB/s, loading is faster from 119,040 tokens on; at 32,768 tokens with 80% hit, TTFT would rise from 993 ms to 1.67 s."}},
		{append(coder, "--bandwidth", "1MB/s"), []string{"Over 1MB/s, loading takes longer than computing at every length up to 131,072 tokens: 32,768 tokens need 8.42 GB/s, overhead included; at"}},
		{append(coder, "--overhead", "1h"), []string{"up to 131,072 tokens: the overhead of each load is as long as computing 32,768 tokens; at"}},
		{append(byHand, "--bandwidth", "100gbe"), []string{"model given by its shape on 8xH100", "falls from 993 ms to 804 ms, or to 540 ms if layers load while others are computed (1.2 and 1.8 times faster, ideal 3.7)"}},
		{append(coder, "--hit", "0"), []string{"stays 993 ms: the hit contains no whole block"}},
		{append(coder, "--hit", "0.95", "--bandwidth", "200gbe,400Gbit/s"), []string{"\nTTFT over 200gbe (25 GB/s), 95% hit:", "\nTTFT over 400Gbit/s, 95% hit:"}},
		{[]string{"--model", "DeepSeek-R1", "--gpu", "8xH20"}, []string{"68.6 KiB of the instance, 68.6 KiB on each rank, the same on all (MLA)", "MFU 0.50 (assumed)"}},
		{[]string{"--model", "DeepSeek-R1", "--gpu", "8 x H100"}, []string{"(as UCM measured it in AWQ)"}},
		{[]string{"--model", "QwQ-32B", "--params", "7B", "--gpu", "2xH100"}, []string{"MFU 0.50 (assumed)"}},
		{[]string{"--model", "DeepSeek-R1", "--gpu", "8xH100", "--mfu", "0.4"}, []string{"MFU 0.40 (assumed)"}},
		{[]string{"--model", "DeepSeek-R1", "--gpu", "8xH100", "--compute", "fp8"}, []string{"1.583e+04 TFLOPS, MFU 0.50 (assumed)"}},
		{[]string{"--model", "Qwen3-32B", "--gpu", "4×H20", "--tp", "2", "--kv-dtype", "fp8"}, []string{"on 4xH20, TP 2, KV in fp8", "128 KiB of the instance, 64.0 KiB on each rank"}},
		{[]string{"--model", "Qwen3-32B", "--gpu", "XPU", "--tflops", "500"}, []string{"on 1xXPU", "500 TFLOPS"}},
		{[]string{"--model", "Qwen3-32B", "--gpu", "910B", "--context", "1Mi", "--block-tokens", "8192"}, []string{"1xAscend-910B", "1,048,576"}},
		{[]string{"--layers", "61", "--mla-dim", "576", "--query-heads", "128", "--params", "37B", "--gpu", "8xH100", "--mfu", "0.5", "--context", "4Ki"}, []string{"break even         3.30 GB/s"}},
	} {
		status, out, errs := planned(c.args...)
		for _, want := range c.want {
			if status != 0 || !strings.Contains(out, want) {
				t.Errorf("%v: exit %d, want %q in\n%s%s", c.args, status, want, out, errs)
			}
		}
	}
}

// The JSON report has the same content, and no numbers that JSON cannot express.
func TestPlanJSON(t *testing.T) {
	for _, args := range [][]string{
		{"--model", "QwQ-32B", "--gpu", "2xH100", "--context", "32000", "--capacity", "1TB"},
		{"--model", "QwQ-32B", "--gpu", "2xH100", "--bandwidth", "1k/s", "--hit", "100%", "--overhead", "1h", "--context", "16Mi"},
		{"--model", "QwQ-32B", "--gpu", "4096xX", "--tp", "8", "--tflops", "200000", "--bandwidth", "3000000TiB/s,pcie5", "--hit", "1", "--overhead", "0s", "--context", "1", "--block-tokens", "1"},
	} {
		status, out, errs := planned(append(args, "--json")...)
		var p plan
		if err := json.Unmarshal([]byte(out), &p); status != 0 || err != nil {
			t.Errorf("%v: exit %d, %v, %s%s", args, status, err, out, errs)
			continue
		}
		if len(p.Pipes) == 0 || len(p.Answers) != len(p.Pipes) || p.InstanceBytes != 262144 {
			t.Errorf("%v: %s", args, out)
		}
		for _, pipe := range p.Pipes {
			for _, row := range pipe.Contexts {
				if !(row.FullComputeMs > 0 && row.IdealMs > 0 && row.OverlappedMs >= row.IdealMs && row.LoadedMs > 0 && row.Speedup > 0) {
					t.Errorf("%v, %s: %+v", args, pipe.Name, row)
				}
			}
		}
	}
	_, out, _ := planned("--model", "QwQ-32B", "--gpu", "2xH100", "--context", "32000", "--json")
	var p plan
	if err := json.Unmarshal([]byte(out), &p); err != nil {
		t.Fatal(err)
	}
	if row := p.Pipes[0].Contexts[3]; row.Tokens != 32000 || row.CachedTokens != 25600 || row.LoadBytes != 25600*262144 || math.Abs(row.FullComputeMs-2544.43) > 0.001 || row.Bound != "compute" {
		t.Errorf("%+v", row)
	}
}

// An error about a wrong command line says how to fix it.
func TestPlanErrors(t *testing.T) {
	good := []string{"--model", "QwQ-32B", "--gpu", "2xH100"}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "name the model with --model"},
		{[]string{"--model", "QwQ-32B"}, "name the GPUs with --gpu"},
		{[]string{"--model", "QwQ-33B", "--gpu", "H100"}, "similar names: QwQ-32B; or give --layers"},
		{[]string{"--model", "QwQ-32B", "--gpu", "H10O"}, "similar names: H100"},
		{[]string{"--model", "QwQ-32B", "--gpu", "TPU"}, "or give its TFLOPS with --tflops"},
		{[]string{"--model", "QwQ-32B", "--gpu", "0xH100"}, "does not begin with a valid number"},
		{[]string{"--model", "QwQ-32B", "--gpu", "99999999999999999999xH100"}, "does not begin with a valid number"},
		{[]string{"--model", "QwQ-32B", "--gpu", "5000xH100"}, "GPUs must be 1 to 4096"},
		{[]string{"--model", "QwQ-32B", "--gpu", "8xH100", "--gpus", "4"}, "leave out one"},
		{[]string{"--model", "QwQ-32B", "--gpu", "H100", "--gpus=-1"}, "--gpus: -1 is out of range"},
		{[]string{"--model", "QwQ-32B", "--gpu", "3xH100"}, "cannot be divided among 3 ranks"},
		{[]string{"--model", "QwQ-32B", "--gpu", "A100", "--compute", "fp8"}, "no FP8 speed is known for A100"},
		{[]string{"--model", "QwQ-32B", "--gpu", "H100", "--tflops", "NaN"}, "--tflops: "},
		{[]string{"--model", "QwQ-32B", "--gpu", "H100", "--tflops=-3"}, "--tflops: "},
		{[]string{"--model", "QwQ-32B", "--gpu", "X", "--tflops", "3", "--compute", "fp8"}, "leave out --compute"},
		{[]string{"--layers", "3", "--gpu", "H100"}, "give KV heads"},
		{[]string{"--model", "QwQ-32B", "--kv-heads", "4", "--gpu", "H100"}, "a model given by its shape needs --layers with"},
		{[]string{"--model", "QwQ-32B", "--gpu", "H100x8"}, "write 8xH20 for eight, or give its TFLOPS with --tflops"},
		{[]string{"--layers", "3", "--mla-dim", "576", "--gpu", "H100"}, "needs --params and --query-heads"},
		{[]string{"--layers", "3", "--mla-dim", "576", "--query-heads=-2", "--params", "1B", "--gpu", "H100"}, "--query-heads: -2"},
		{[]string{"--layers", "10000", "--kv-heads", "1", "--head-dim", "65536", "--query-heads", "8", "--params", "1B", "--gpu", "1024xH100"}, "more than any model keeps"},
		{append(good, "--tp", "4"), "--tp must be 1 to the number of GPUs"},
		{append(good, "--params", "37"), "write 32.8B"},
		{append(good, "--params", "lots"), "write 32.8B"},
		{append(good, "--kv-dtype", "int3"), "--kv-dtype"},
		{append(good, "--context", "100"), "shorter than a block of 128"},
		{append(good, "--context", "0"), "not a number of tokens"},
		{append(good, "--context", "17Mi"), "not a number of tokens"},
		{append(good, "--context", "32i"), "not a number of tokens"},
		{append(good, "--context", "3kk"), "not a number of tokens"},
		{append(good, "--context", "many"), "not a number of tokens"},
		{append(good, "--hit", "80"), "percentage such as 80%"},
		{append(good, "--hit", "NaN"), "is not a share"},
		{append(good, "--hit=-1"), "is not a share"},
		{append(good, "--bandwidth", "nvme6"), "nvme5; or write a rate"},
		{append(good, "--bandwidth", "400Gb/s"), "bits or bytes"},
		{append(good, "--bandwidth", "fast/s"), "is not a rate"},
		{append(good, "--bandwidth", ""), "--bandwidth: is empty"},
		{append(good, "--bandwidth", "0GB/s"), "is not a rate"},
		{append(good, "--overhead=-1s"), "--overhead: "},
		{append(good, "--overhead", "2h"), "--overhead: "},
		{append(good, "--mfu", "1.5"), "--mfu: 1.5"},
		{append(good, "--mfu", "NaN"), "--mfu: NaN"},
		{append(good, "--block-tokens", "0"), "--block-tokens: 0"},
		{append(good, "--capacity", "all"), "is not a size"},
	} {
		if status, out, errs := planned(c.args...); status != exitUsage || !strings.Contains(errs, c.want) {
			t.Errorf("%v: exit %d, want %d and %q in\n%s%s", c.args, status, exitUsage, c.want, out, errs)
		}
	}
}
