// A model's name is the last part of its path, whatever its path ends in.
#include "engine/base/fnv.h"
#include "engine/base/model_name.h"

#include <gtest/gtest.h>

namespace keyhole::test_model_name {
namespace {

TEST(ModelName, IsTheLastPartOfThePath) {
    for (const char* path : {"assets/models/keyhole-base", "assets/models/keyhole-base/", "keyhole-base",
                             "./keyhole-base//", "/models/keyhole-base/.", "/models/x/../keyhole-base/"})
        EXPECT_EQ(model_name(path), "keyhole-base") << path;
    EXPECT_EQ(model_name("a/model.Q4_K.gguf"), "model.Q4_K.gguf");
    EXPECT_EQ(model_name(""), "");
}

// The published test values of FNV-1a, 64 bits.
TEST(Fnv, HasThePublishedValues) {
    static_assert(fnv1a("") == 0xcbf29ce484222325u);
    EXPECT_EQ(fnv1a("a"), 0xaf63dc4c8601ec8cu);
    EXPECT_EQ(fnv1a("foobar"), 0x85944171f73967e8u);
    EXPECT_EQ(fnv1a("bar", fnv1a("foo")), fnv1a("foobar"));
}

}  // namespace
}  // namespace keyhole::test_model_name
