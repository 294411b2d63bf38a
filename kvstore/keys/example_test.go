package keys_test

import (
	"fmt"

	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// A conversation of two turns. The second turn adds the keys of the blocks that it
// completes.
func Example() {
	ns := keys.Namespace{Model: "Qwen/QwQ-32B", Revision: "976055f", DType: "bfloat16", BlockTokens: 4, Layers: 64}
	chain, err := keys.NewChain(ns)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("namespace", ns.Fingerprint())
	fmt.Println(chain.Append([]uint32{11, 12, 13, 14, 15, 16}))
	fmt.Println(chain.Append([]uint32{17, 18, 19}))
	fmt.Println(chain.Len(), "tokens")
	// Output:
	// namespace 400306866aed75154a1f5aea323024e5
	// [df6cacae2b32cef90e50b5b5779f3db1]
	// [0f898f70aeaf05355ecc3a93e7191859]
	// 9 tokens
}

// The pages that vLLM's 3FS connector requests from its metadata server.
func ExampleNewVLLMChain() {
	chain, err := keys.NewVLLMChain(keys.Namespace{Model: "Qwen/QwQ-32B", BlockTokens: 4}, keys.VLLM{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, block := range chain.AppendBlocks([]uint32{0, 1, 2, 3, 4, 5, 6, 7}) {
		fmt.Println(block.ID)
	}
	// Output:
	// d8839002544966f443098ab486a3e3e8
	// 2a31dd6ca46ee7d69c079ca5004c07ad
}

// The files of one rank of an engine with UCM: a key is the file's name.
func ExampleNewUCMChain() {
	ns := keys.Namespace{Model: "/models/QwQ-32B", DType: "bfloat16", BlockTokens: 4, TPSize: 8, TPRank: 3}
	chain, err := keys.NewUCMChain(ns, keys.UCM{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, key := range chain.Append([]uint32{0, 1, 2, 3, 4}) {
		fmt.Println(key)
	}
	// Output:
	// 52726575801e79dcbd1b34c86f94959a
}
