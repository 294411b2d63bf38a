package main

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/advise/prefill"
)

func planned(args ...string) (status int, out, errs string) {
	var o, e bytes.Buffer
	status = run(append([]string{"plan"}, args...), &o, &e)
	return status, o.String(), e.String()
}

// The whole report, as text.
func TestPlan(t *testing.T) {
	const want = `Over 3fs (42.9 GB/s), loading is faster from 128 tokens on; at 32,000 tokens with 80% hit, TTFT falls from 2.70 s to 809 ms, or to 656 ms if layers load while others are computed (3.3 and 4.1 times faster, ideal 4.2).
  With MFU 0.35 to 0.6 instead of 0.5: 3.21 to 3.55 times faster, or 4.11 to 4.13 times faster with layers that overlap.
  The verdict without overlap turns below 3.28 GB/s, and at this bandwidth at no MFU.

instance           QwQ-32B on 2xH100, TP 2, KV in bf16
layers             64 with full attention
weights            65.5 GB (32.8B parameters, 31.2B without embeddings); the GPUs have 160 GB
prefill            11,860 tokens/s at 32,000 tokens (8,302 to 14,233): 1978 TFLOPS, MFU 0.5 (0.35 to 0.6 is plausible)
shortest pass      9.55 ms: reading the weights once from GPU memory
KV per token       256 KiB of the instance, 128 KiB on each rank
hit                6.25 GiB for 25,600 tokens
KV of the context  7.81 GiB, in blocks of 32.0 MiB (128 tokens)
break even         3.28 GB/s for the hit, overhead included (2.30 GB/s to 3.94 GB/s): below it, loading takes longer than computing
capacity           10.0 TiB hold 41,943,040 tokens, 1,310 conversations of 32,000

TTFT over 3fs (42.9 GB/s), 80% hit (speed-up with overlap, at MFU 0.35 to 0.6):
   tokens   to load  break even  compute   loaded  overlapped    ideal  speed-up      range  bound by
    4,096   800 MiB   4.12 GB/s   270 ms  85.4 ms     66.2 ms  60.9 ms      4.07  4.01-4.17   compute
    8,192  1.59 GiB   3.93 GB/s   561 ms   166 ms      127 ms   121 ms      4.43  4.39-4.49   compute
   16,384  3.19 GiB   3.67 GB/s   1.21 s   360 ms      281 ms   275 ms      4.31  4.29-4.34   compute
   32,000  6.25 GiB   3.28 GB/s   2.70 s   809 ms      656 ms   648 ms      4.12  4.11-4.13   compute
   32,768  6.38 GiB   3.27 GB/s   2.78 s   844 ms      687 ms   680 ms      4.04  4.04-4.06   compute
   65,536  12.8 GiB   2.68 GB/s   6.98 s   2.19 s      1.87 s   1.86 s      3.73  3.73-3.74   compute
  131,072  25.6 GiB   1.98 GB/s   19.7 s   6.40 s      5.77 s   5.76 s      3.40  3.40-3.41   compute

Measured on such an instance (UCM, QwQ-32B; requests that arrive together, two storage nodes), beside the prediction over 3fs (42.9 GB/s) if they run one after the other:
  requests  tokens  compute, measured  predicted            range  80% hit, measured   loaded  overlapped
         1   4,000             268 ms     263 ms  219 ms - 376 ms             116 ms  78.8 ms     59.6 ms
         1   8,000             534 ms     547 ms  456 ms - 782 ms             223 ms   160 ms      122 ms
         1  16,000             1.14 s     1.18 s  983 ms - 1.68 s             493 ms   346 ms      269 ms
         1  32,000             2.54 s     2.70 s  2.25 s - 3.85 s             1.03 s   809 ms      656 ms
         2   4,000             402 ms     395 ms  329 ms - 564 ms             232 ms   118 ms     89.4 ms
         2   8,000             800 ms     821 ms  684 ms - 1.17 s             461 ms   240 ms      183 ms
         2  16,000             1.66 s     1.77 s  1.47 s - 2.53 s             760 ms   519 ms      404 ms
         2  32,000             3.69 s     4.05 s  3.37 s - 5.78 s             1.49 s   1.21 s      983 ms
         4   4,000             776 ms     658 ms  548 ms - 939 ms             453 ms   197 ms      149 ms
         4   8,000             1.60 s     1.37 s  1.14 s - 1.95 s             758 ms   401 ms      305 ms
         4  16,000             3.41 s     2.95 s  2.46 s - 4.21 s             1.49 s   865 ms      673 ms
         4  32,000             6.92 s     6.74 s  5.62 s - 9.64 s             3.02 s   2.02 s      1.64 s
         8   4,000             1.62 s     1.18 s  986 ms - 1.69 s             806 ms   355 ms      268 ms
         8   8,000             3.36 s     2.46 s  2.05 s - 3.52 s             1.53 s   721 ms      548 ms
         8  16,000             5.97 s     5.31 s  4.42 s - 7.58 s             2.71 s   1.56 s      1.21 s
         8  32,000             12.1 s     12.1 s  10.1 s - 17.3 s             5.58 s   3.64 s      2.95 s
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
		{append(coder, "--bandwidth", "100gbe", "--context", "4Ki"), []string{
			"Over 100gbe (12.5 GB/s), loading is faster from 640 tokens on; at 4,096 tokens with 80% hit, TTFT falls from 127 ms to 106 ms, or to 70.6 ms if layers load",
			"\n  With MFU 0.1 to 0.5 instead of 0.3: 1.39 times slower to 2.40 times faster, or 1.08 to 4.01 times faster with layers that overlap.\n",
			"\n  Uncertain: the verdict without overlap turns below 9.45 GB/s, and at this bandwidth above MFU 0.36.\n",
		}},
		// Section 3.3 of the project's study, at its MFU: over 13 GB/s at 4K, 100GbE loses there.
		{append(coder, "--bandwidth", "100gbe", "--context", "4Ki", "--mfu", "0.5"), []string{"TTFT falls from 76.1 ms to 70.6 ms only if layers load while others are computed.\n  With MFU 0.1 to 0.5 instead of 0.5:"}},
		{append(coder, "--bandwidth", "4GB/s"), []string{"Over 4GB/s, loading is faster from 55,040 tokens on; at 32,768 tokens with 80% hit, TTFT would rise from 1.62 s to 1.67 s.", "turns above 5.66 GB/s, and at this bandwidth below MFU 0.21."}},
		{append(coder, "--bandwidth", "1MB/s"), []string{"Over 1MB/s, loading takes longer than computing at every length up to 131,072 tokens; at", "\n  The verdict without overlap turns above 5.66 GB/s, and at this bandwidth at no MFU."}},
		{append(coder, "--overhead", "1h"), []string{"turns at no bandwidth, since the overhead alone takes longer than computing the hit", "break even         at no bandwidth", "  never"}},
		{append(coder, "--bandwidth", "4x100gbe"), []string{"Over 4x100gbe (50 GB/s), loading"}},
		{append(byHand, "--bandwidth", "100gbe"), []string{"model given by its shape on 8xH100", "MFU 0.5 (0.35 to 0.6 is plausible)", "weights            70.0 GB"}},
		{append(coder, "--hit", "0"), []string{"stays 1.62 s: the hit contains no whole block"}},
		{append(coder, "--hit", "0.95", "--bandwidth", "200gbe,400Gbit/s"), []string{"\nTTFT over 200gbe (25 GB/s), 95% hit (", "\nTTFT over 400Gbit/s, 95% hit ("}},
		{[]string{"--model", "DeepSeek-R1", "--gpu", "8xH20"}, []string{"68.6 KiB of the instance, 68.6 KiB on each rank, the same on all (MLA): loaded once\n", "MFU 0.3 (0.1 to 0.5 is plausible)"}},
		{[]string{"--model", "DeepSeek-R1", "--gpu", "2 x 8 x H20"}, []string{"on 2x8xH20, TP 16", "137 KiB of the instance, 68.6 KiB on each rank, the same on all (MLA): loaded once for each host\n"}},
		{[]string{"--model", "DeepSeek-R1", "--gpu", "8 x H100"}, []string{"Warning: The weights take 673 GB and do not fit into the 576 GB", "at least 10 such GPUs", "(UCM, DeepSeek-R1 in AWQ; requests that arrive together", "2.94 s", "The 7270.95 ms of 8 prompts of 16,000 tokens stand twice in UCM's documentation, here and for 12 prompts of Qwen2.5-14B"}},
		{[]string{"--model", "deepseek-ai/DeepSeek-V3", "--gpu", "8xH100", "--weights", "350GB"}, []string{"weights            350 GB", "(UCM, DeepSeek-R1 in AWQ;"}},
		{[]string{"--model", "Llama-3.1-8B", "--gpu", "A10", "--context", "128Ki"}, []string{"Warning: Beside the weights, 1xA10 has room for 5.54 GB of KV, and one prompt of 131,072 tokens takes more."}},
		{[]string{"--model", "Qwen2.5-14B-Instruct", "--gpu", "2xH100"}, []string{"Qwen2.5-14B on 2 GPUs that it does not name, 12 prompts of 16,000 tokens at once: mean TTFT 7.27 s without a hit and 1.56 s with all blocks in the store; predicted for these GPUs: 3.61 s, and 536 ms or 509 ms"}},
		{[]string{"--model", "QwQ-32B", "--params", "7B", "--gpu", "2xH100"}, []string{"14.0 GB (7.00B parameters"}},
		{[]string{"--model", "DeepSeek-R1", "--gpu", "8xH100", "--mfu", "0.4"}, []string{"MFU 0.4 (0.1 to 0.5 is plausible)"}},
		{[]string{"--model", "DeepSeek-R1", "--gpu", "8xH100", "--compute", "fp8"}, []string{"1.583e+04 TFLOPS, MFU 0.3 ("}},
		{[]string{"--model", "Qwen3-32B", "--gpu", "4×H20", "--tp", "2", "--kv-dtype", "fp8"}, []string{"on 4xH20, TP 2, KV in fp8", "128 KiB of the instance, 64.0 KiB on each rank"}},
		{[]string{"--model", "Qwen3-30B-A3B", "--gpu", "8xH20"}, []string{"192 KiB of the instance, 24.0 KiB on each rank"}}, // 4 KV heads
		{[]string{"--model", "Qwen3-32B", "--gpu", "XPU", "--tflops", "500"}, []string{"on 1xXPU", "500 TFLOPS", "the GPUs' memory is not known"}},
		{[]string{"--model", "Qwen3-32B", "--gpu", "XPU", "--tflops", "500", "--gpu-memory", "60GB", "--memory-bandwidth", "2TB/s"}, []string{"Warning: The weights take 65.5 GB and do not fit into the 54.0 GB", "shortest pass      32.0 ms"}},
		{[]string{"--model", "Qwen3-Coder 480B", "--gpu", "8 x H20-3e"}, []string{"Qwen3-Coder-480B-A35B on 8xH20-3e, TP 8", "1184 TFLOPS", "the GPUs have 1128 GB"}},
		{[]string{"--model", "QwQ-32B", "--gpu", "2x8xH20"}, []string{"on 2x8xH20, TP 16", "512 KiB of the instance, 32.0 KiB on each rank"}},
		{[]string{"--model", "QwQ-32B", "--gpu", "2 * 8 * NVIDIA H20-3e"}, []string{"on 2x8xH20-3e, TP 16"}},
		{[]string{"--model", "QwQ-32B", "--gpu", "8xMI300X", "--compute", "fp8", "--bandwidth", "2xnvme4,4x400gbe"}, []string{"on 8xMI300X", "2.092e+04 TFLOPS", "Over 2xnvme4 (14 GB/s)", "Over 4x400gbe (200 GB/s)"}},
		{[]string{"--model", "Qwen3-32B", "--gpu", "910B", "--context", "1Mi", "--block-tokens", "8192"}, []string{"1xAscend-910B", "1,048,576"}},
		{[]string{"--model", "Mistral-7B-Instruct-v0.1", "--gpu", "H100"}, []string{"32 with a sliding window of 4096 tokens", "hit                512 MiB for 26,112 tokens, of layers with a window only what it needs"}},
		{[]string{"--model", "Mistral-7B-Instruct-v0.1", "--gpu", "H100", "--whole-windows"}, []string{"hit                3.19 GiB for 26,112 tokens, of every layer"}},
		{[]string{"--model", "Qwen3-Next-80B-A3B-Instruct", "--gpu", "2xH200"}, []string{"36 with a recurrent state, 12 with full attention", "states             73.7 MiB"}},
		{[]string{"--layers", "61", "--mla-dim", "576", "--query-heads", "128", "--params", "37B", "--gpu", "8xH100", "--mfu", "0.5", "--context", "4Ki", "--hit", "100%", "--overhead", "0s", "--block-tokens", "1"}, []string{"break even         3.41 GB/s"}},
	} {
		status, out, errs := planned(c.args...)
		for _, want := range c.want {
			if status != 0 || !strings.Contains(out, want) {
				t.Errorf("%v: exit %d, want %q in\n%s%s", c.args, status, want, out, errs)
			}
		}
	}
}

// Every row that UCM published for an instance is shown, and beside it the mean of as many
// requests that run one after the other.
func TestPlanShowsMeasurements(t *testing.T) {
	for _, c := range []struct{ model, gpu string }{{"QwQ-32B", "2xH100"}, {"DeepSeek-R1", "8xH100"}} {
		_, out, errs := planned("--model", c.model, "--gpu", c.gpu, "--json")
		var p plan
		if err := json.Unmarshal([]byte(out), &p); err != nil {
			t.Fatal(err, errs)
		}
		var want []prefill.Published
		for _, r := range prefill.UCM() {
			if r.Model == c.model {
				want = append(want, r)
			}
		}
		if len(p.Measured) != len(want) || len(want) != 16 {
			t.Fatalf("%s: %d rows, want %d", c.model, len(p.Measured), len(want))
		}
		for i, row := range p.Measured {
			w, one := want[i], p.Measured[i%4]
			if row.Concurrent != w.Concurrent || row.Tokens != w.TotalTokens || row.FullComputeMs != millis(w.FullCompute) || row.Hit80Ms != millis(w.Hit80) {
				t.Errorf("%s: %+v, want %+v", c.model, row, w)
			}
			wait := float64(w.Concurrent+1) / 2
			if math.Abs(row.Predicted.FullComputeMs/one.Predicted.FullComputeMs-wait) > 1e-9 || math.Abs(row.Predicted.OverlappedMs/one.Predicted.OverlappedMs-wait) > 1e-9 || row.Predicted.LoadMs != one.Predicted.LoadMs {
				t.Errorf("%s: %d at once: predicted %+v, one alone %+v", c.model, w.Concurrent, row.Predicted, one.Predicted)
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
		checkJSON(t, "plan", out)
		for _, pipe := range p.Pipes {
			for _, row := range pipe.Contexts {
				if r := row.SpeedupRange; !(r.Low <= row.Speedup*1.001 && row.Speedup <= r.High*1.001 && r.Low > 0) {
					t.Errorf("%v, %s: speed-up %g, range %+v", args, pipe.Name, row.Speedup, r)
				}
			}
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
	if row := p.Pipes[0].Contexts[3]; row.Tokens != 32000 || row.CachedTokens != 25600 || row.LoadBytes != 25600*262144 || math.Abs(row.FullComputeMs-2697.926) > 0.01 || row.Bound != "compute" {
		t.Errorf("%+v", row)
	}
}

// An error about a wrong command line says how to fix it.
func TestPlanErrors(t *testing.T) {
	good := []string{"--model", "QwQ-32B", "--gpu", "2xH100"}
	encoder := filepath.Join(t.TempDir(), "bert.json")
	if err := os.WriteFile(encoder, []byte(`{"model_type":"bert","hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,"vocab_size":30522,"intermediate_size":3072}`), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(broken, []byte(`{"num_hidden_layers":4,"hidden_size":512}`), 0o600); err != nil {
		t.Fatal(err)
	}
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
		{[]string{"--model", "QwQ-32B", "--gpu", "H100", "--gpus", "-1"}, "--gpus: -1 is out of range"},
		{[]string{"--model", "QwQ-32B", "--gpu", "H100", "--mfu", "-1"}, "--mfu: -1 is out of range; it must be 0.001 to 1"},
		{[]string{"--model", "QwQ-32B", "--gpu", "H100", "--mfu", "-.5"}, "--mfu: -0.5 is out of range; it must be 0.001 to 1"},
		{[]string{"--model", "QwQ-32B", "--gpu", "3xH100"}, "cannot be divided among 3 ranks"},
		{[]string{"--model", "QwQ-32B", "--gpu", "A100", "--compute", "fp8"}, "no FP8 speed is known for A100"},
		{[]string{"--model", "QwQ-32B", "--gpu", "H100", "--tflops", "NaN"}, "--tflops: "},
		{[]string{"--model", "QwQ-32B", "--gpu", "H100", "--tflops=-3"}, "--tflops: "},
		{[]string{"--model", "QwQ-32B", "--gpu", "X", "--tflops", "3", "--compute", "fp8"}, "leave out --compute"},
		{[]string{"--layers", "3", "--query-heads", "8", "--params", "1B", "--gpu", "H100"}, "key and value"},
		{[]string{"--model", "QwQ-32B", "--kv-heads", "4", "--gpu", "H100"}, "a model given by its shape needs --params and --query-heads"},
		{[]string{"--model", "none.json", "--gpu", "H100"}, "none.json: no such file"},
		{[]string{"--model", broken, "--gpu", "H100"}, broken + ": model: num_attention_heads is missing (how many query heads a layer has); or give --layers"},
		{[]string{"--model", encoder, "--gpu", "H100"}, encoder + ": model: no KV cache to load: model_type: bert is an encoder: each token sees those that follow, so the KV of a prefix is another one in each prompt\n"},
		{[]string{"--model", "google/gemma-3n-E4B", "--gpu", "H100"}, "no shape known"},
		{[]string{"--model", "QwQ-32B", "--weights", "1MB", "--gpu", "H100"}, "--weights: "},
		{[]string{"--model", "QwQ-32B", "--gpu", "2x2x2xH100"}, "write 2x8xH20"},
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
		{append(good, "--bandwidth", "0x100gbe"), "does not begin with a valid number; write 4x100gbe"},
		{append(good, "--bandwidth", "2x2x100gbe"), "more than one number"},
		{append(good, "--bandwidth", "fast/s"), "is not a rate"},
		{append(good, "--bandwidth", ""), "--bandwidth: is empty"},
		{append(good, "--bandwidth", "0GB/s"), "is not a rate"},
		{append(good, "--overhead=-1s"), "--overhead: "},
		{append(good, "--overhead", "2h"), "--overhead: "},
		{append(good, "--mfu", "1.5"), "--mfu: 1.5"},
		{append(good, "--mfu", "NaN"), "--mfu: NaN"},
		{append(good, "--mfu", "-1"), "--mfu: -1 is out of range; it must be 0.001 to 1\n"},
		{append(good, "--overhead", "-1s"), "--overhead: -1s is out of range; it must be 0s to 1h\n"},
		{append(good, "--weights", "-5GB"), "--weights: \"-5GB\" is not a size"},
		{append(good, "--weights", "1KB"), "--weights: model: 32.8 billion parameters take 3.43 to 502 GB, not 1e-06"},
		{append(good, "--gpu-memory", "1B"), "--gpu-memory: 1 B is out of range; it must be 1GB to 16TB"},
		{append(good, "--gpu-memory", "17TB"), "is out of range; it must be 1GB to 16TB"},
		{append(good, "--memory-bandwidth", "1B/s"), "--memory-bandwidth: 1B/s is out of range; it must be 1GB/s to 1000TB/s"},
		{append(good, "--memory-bandwidth", "2PB/s"), "--memory-bandwidth: 2PB/s is out of range"},
		{append(good, "--bandwidth", "3fs,10B/s"), "--bandwidth: 10B/s is out of range; it must be at least 1KB/s"},
		{append(good, "--query-heads", "3"), "query heads must be a multiple of the KV heads, 8, not 3"},
		{append(good, "--gpus", "5000"), "--gpus: 5000 is out of range; it must be 1 to 4096"},
		{append(good, "--context"), "--context: its value is missing\n"},
		{append(good, "--block-tokens", "0"), "--block-tokens: 0"},
		{append(good, "--capacity", "all"), "is not a size"},
	} {
		if status, out, errs := planned(c.args...); status != exitUsage || !strings.Contains(errs, c.want) {
			t.Errorf("%v: exit %d, want %d and %q in\n%s%s", c.args, status, exitUsage, c.want, out, errs)
		}
	}
}

// A model is read from its config.json, given as a file or by its directory, and gives
// the answers of the same model by name.
func TestPlanReadsConfig(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config.json")
	const qwq = `{"architectures":["Qwen2ForCausalLM"],"model_type":"qwen2","hidden_size":5120,"intermediate_size":27648,"num_hidden_layers":64,
		"num_attention_heads":40,"num_key_value_heads":8,"max_window_layers":64,"sliding_window":32768,"use_sliding_window":false,"vocab_size":152064,
		"tie_word_embeddings":false,"torch_dtype":"bfloat16"}`
	if err := os.WriteFile(config, []byte(qwq), 0o600); err != nil {
		t.Fatal(err)
	}
	_, want, _ := planned("--model", "QwQ-32B", "--gpu", "2xH100")
	for _, path := range []string{config, dir} {
		status, out, errs := planned("--model", path, "--gpu", "2xH100")
		if got := strings.ReplaceAll(out, path+" on ", "QwQ-32B on "); status != 0 || got != want {
			t.Errorf("%s: exit %d %s\n%s\nwant\n%s", path, status, errs, got, want)
		}
	}
}

// Equal layers, parameters and peaks give equal answers.
func TestPlanDependsOnNoName(t *testing.T) {
	_, want, _ := planned("--model", "DeepSeek-R1", "--gpu", "8xH100")
	_, out, _ := planned("--model", "DeepSeek-V3", "--gpu", "8xH100")
	if got := strings.ReplaceAll(out, "DeepSeek-V3 on", "DeepSeek-R1 on"); got != want || want == "" {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
