// The laid weights of a model: what is laid, that file pages are given back, and that backends share them.
#include "engine/backend/cpu/integer_weights.h"

#include "engine/backend/cpu/cpu_backend.h"
#include "engine/backend/memory_need.h"
#include "engine/base/load_listener.h"
#include "engine/base/mapped_file.h"
#include "engine/base/mapping_guard.h"
#include "engine/model/model.h"
#include "engine/model/seeded_model.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/temp_folder.h"
#include "tests/reference/tiny_shape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace keyhole::test_integer_weights {
namespace {

TEST(IntegerWeights, NothingIsLaidOfPlainWeights) {
    const auto model = make_seeded_model(reference::tiny_shape(300), DType::f16);
    ThreadPool pool(1);
    const auto weights = cpu::integer_weights_of(model, pool);
    EXPECT_TRUE(weights->empty());
    EXPECT_EQ(weights->text(), "");
    EXPECT_EQ(weights->find(model->weights().layers[0].q), nullptr);
}

TEST(IntegerWeights, AreMadeOnceForAModel) {
    const auto model = make_seeded_model(reference::tiny_shape(300), DType::f16);
    ThreadPool pool(1);
    const auto weights = cpu::integer_weights_of(model, pool);
    EXPECT_EQ(cpu::integer_weights_of(model, pool), weights);
    EXPECT_NE(cpu::integer_weights_of(make_seeded_model(reference::tiny_shape(300), DType::f16), pool),
              weights);
}

// What is laid stands in memory once, not as the file's pages too.
TEST(IntegerWeights, CountInPlaceOfTheFilesPages) {
    const auto model = load_model(reference::source_folder() / "tests/fuzz/seeds/gguf/bytes.gguf");
    const auto bytes_of = [&](Precision precision) {
        return make_cpu_backend(model, 1, precision)->weight_bytes();
    };
    EXPECT_EQ(bytes_of(Precision::floats), weight_bytes(*model));
    ThreadPool pool(1);
    const auto weights = cpu::integer_weights_of(model, pool);
    std::int64_t plain = 0;  // norms
    visit_weights(model->weights(), [&](const Weight& w) {
        if (weights->find(w) == nullptr) plain += stored_bytes(w);
    });
    EXPECT_GT(plain, 0);
    EXPECT_GT(weights->bytes(), 0);
    EXPECT_EQ(bytes_of(Precision::weights), weights->bytes() + plain);
}

// Who loads a large model sees how far it is.
TEST(IntegerWeights, TellTheirListenerHowFarTheyAre) {
    const auto path = reference::source_folder() / "tests/fuzz/seeds/gguf/bytes.gguf";
    ThreadPool pool(1);
    std::vector<double> shares, outer;
    {
        const LoadListener around([&](double share) { outer.push_back(share); });
        {
            const LoadListener listener([&](double share) { shares.push_back(share); });
            EXPECT_FALSE(cpu::integer_weights_of(load_model(path), pool)->empty());
        }
        EXPECT_TRUE(outer.empty());
        LoadListener::tell(0.5);
    }
    EXPECT_EQ(outer, std::vector<double>{0.5});
    ASSERT_GT(shares.size(), 5u);  // one for each matrix
    EXPECT_TRUE(std::is_sorted(shares.begin(), shares.end()));
    EXPECT_GT(shares.front(), 0);
    EXPECT_LT(shares.front(), 0.5);
    EXPECT_EQ(shares.back(), 1);
    const std::size_t n = shares.size();
    (void)cpu::integer_weights_of(load_model(path), pool);
    EXPECT_EQ(shares.size(), n) << "nobody listens any more";
}

TEST(MappedPages, AreGivenBackAndReadAgain) {
    const reference::TempFolder folder("give-back");
    std::vector<std::byte> content(1 << 16);
    for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<std::byte>(i * 7);
    write_file(folder.path() / "file", content);
    const MappedFile file(folder.path() / "file");
    EXPECT_TRUE(std::equal(content.begin(), content.end(), file.bytes().begin()));
    give_back_mapped(file.bytes());
    EXPECT_TRUE(std::equal(content.begin(), content.end(), file.bytes().begin()));
    // Memory of another kind stays what it is.
    Pages pages(1 << 16);
    std::copy(content.begin(), content.end(), pages.as<std::byte>().begin());
    give_back_mapped(pages.as<const std::byte>());
    EXPECT_TRUE(std::equal(content.begin(), content.end(), pages.as<std::byte>().begin()));
    keep_mapped(file.bytes().data());
    give_back_mapped(file.bytes());
    EXPECT_TRUE(std::equal(content.begin(), content.end(), file.bytes().begin()));
}

}  // namespace
}  // namespace keyhole::test_integer_weights
