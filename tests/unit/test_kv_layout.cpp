#include "engine/base/index.h"
#include "engine/model/kv_layout.h"

#include "engine/base/error.h"

#include <gtest/gtest.h>

namespace keyhole::test_kv_layout {
namespace {

TEST(KvLayout, TableAndReadersAgree) {
    struct Case {
        int n_layers, n_heads, n_kv_heads;
    };
    for (const Case c : {Case{1, 1, 1}, Case{3, 8, 8}, Case{3, 8, 2}, Case{5, 6, 3}, Case{2, 7, 1}}) {
        const KvLayout layout = KvLayout::grouped(c.n_layers, c.n_heads, c.n_kv_heads);
        EXPECT_EQ(layout.n_kv_heads(), c.n_layers * c.n_kv_heads);
        EXPECT_EQ(layout.first_of_layer(c.n_layers), layout.n_kv_heads());
        std::size_t n_readers = 0;
        for (int g = 0; g < layout.n_kv_heads(); ++g) {
            const KvHead& kv_head = layout.kv_head(g);
            EXPECT_EQ(layout.first_of_layer(kv_head.owner_layer) + kv_head.index, g);
            EXPECT_EQ(kv_head.readers.size(), to_index(c.n_heads / c.n_kv_heads));
            n_readers += kv_head.readers.size();
            for (const HeadRef reader : kv_head.readers) {
                EXPECT_EQ(layout.kv_head_from_head(reader.layer, reader.head), g);
                EXPECT_EQ(reader.layer, kv_head.owner_layer);
                EXPECT_EQ(reader.head / (c.n_heads / c.n_kv_heads), kv_head.index);
            }
        }
        EXPECT_EQ(n_readers, to_index(c.n_layers * c.n_heads));  // each head reads one
    }
}

TEST(KvLayout, WhatDoesNotDivideIsRefused) {
    EXPECT_THROW(KvLayout::grouped(2, 8, 3), Error);
    EXPECT_THROW(KvLayout::grouped(2, 8, 0), Error);
    EXPECT_THROW(KvLayout::grouped(0, 8, 8), Error);
    EXPECT_THROW(KvLayout::grouped(2, 4, 8), Error);
}

}  // namespace
}  // namespace keyhole::test_kv_layout
