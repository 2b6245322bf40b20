// Quest: a decode step reads the best pages of what is stored. Against the reference in double, whose query
// heads see those tokens alone; the bounds of pages; and the specification's worked example.
#include "engine/backend/common/key_pages.h"
#include "engine/backend/cuda/kernels/pages.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "engine/policy/option_help.h"
#include "engine/policy/preset_table.h"
#include "engine/policy/spec_copies.h"
#include "engine/trace/record.h"
#include "tests/reference/backend_pair.h"
#include "tests/reference/engine_run.h"
#include "tests/reference/tiny_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

namespace reference::test_quest {
namespace {

using keyhole::KeyPages;
using keyhole::PageBounds;
using keyhole::to_index;

int n_choices() {
    const char* wanted = std::getenv("KEYHOLE_SELECTIONS");
    return wanted != nullptr ? std::atoi(wanted) : 400;
}

/// Returns the largest q.k that a key within the page's extremes could have.
double bound_of(const Vector& query, const std::vector<Vector>& keys) {
    double bound = 0;
    for (std::size_t c = 0; c < query.size(); ++c) {
        double least = keys.front()[c], most = least;
        for (const Vector& key : keys) least = std::min(least, key[c]), most = std::max(most, key[c]);
        bound += std::max(query[c] * least, query[c] * most);
    }
    return bound;
}

PageBounds bounds_of(const KeyPages& pages, std::span<const float* const> queries) {
    PageBounds bounds;
    bounds.begin(queries.size(), to_index(pages.n_pages()));
    pages.bound(queries, 0, pages.n_pages(), bounds);
    return bounds;
}

std::vector<int> chosen_of(const KeyPages& pages, const float* query, int n_read, bool own) {
    const PageBounds bounds = bounds_of(pages, {&query, 1});
    std::vector<float> scratch;
    std::vector<int> chosen;
    keyhole::choose_pages(bounds.values[0], n_read, own, scratch, chosen);
    return chosen;
}

// --- pages -------------------------------------------------------------------------------------------------

TEST(Quest, ChoosesThePagesWithTheLargestBounds) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    const auto below = [&](int n) { return static_cast<int>(random() % to_index(n)); };
    for (int round = 0; round < n_choices(); ++round) {
        const int page = 1 + below(6), d = 1 + below(20);
        KeyPages pages;
        pages.begin(page, d);
        std::vector<std::vector<Vector>> keys;  // [page][token]
        std::vector<std::pair<int, int>> places;
        int position = below(4), last = -1, n = 0;
        for (; n < 60; ++n, position += below(8) == 0 ? 2 + below(9) : 1) {  // some tokens are gone
            std::vector<float> key;
            for (int c = 0; c < d; ++c) key.push_back(normal(random));
            pages.add(position, key.data());
            if (position / page != last) {
                keys.emplace_back();
                places.emplace_back(n, n);
            }
            last = position / page;
            keys.back().emplace_back(key.begin(), key.end());
            places.back().second = n + 1;
        }
        ASSERT_EQ(pages.n_tokens(), n);
        ASSERT_EQ(pages.n_pages(), static_cast<int>(keys.size()));
        for (std::size_t i = 0; i < places.size(); ++i)
            ASSERT_EQ(pages.tokens(static_cast<int>(i)), places[i]);
        std::vector<float> query;
        for (int c = 0; c < d; ++c) query.push_back(normal(random));
        Vector bounds;
        for (const auto& of_page : keys) {
            bounds.push_back(bound_of({query.begin(), query.end()}, of_page));
            for (const Vector& key : of_page) {
                double product = 0;
                for (std::size_t c = 0; c < key.size(); ++c) product += double{query[c]} * key[c];
                ASSERT_LE(product, bounds.back() + 1e-9) << "a bound is never below q.k";
                if (of_page.size() == 1) {
                    ASSERT_NEAR(product, bounds.back(), 1e-9);
                }
            }
        }
        const int n_read = 1 + below(static_cast<int>(keys.size()) - 1);
        const bool own = below(2) == 0;
        const std::vector<int> chosen = chosen_of(pages, query.data(), n_read, own);
        ASSERT_EQ(static_cast<int>(chosen.size()), n_read);
        ASSERT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
        if (own) {
            ASSERT_EQ(chosen.back(), static_cast<int>(keys.size()) - 1);
        }
        double worst_read = std::numeric_limits<double>::infinity(), best_left = -worst_read;
        for (std::size_t i = 0; i < keys.size(); ++i) {
            if (own && i + 1 == keys.size()) continue;
            if (std::binary_search(chosen.begin(), chosen.end(), static_cast<int>(i)))
                worst_read = std::min(worst_read, bounds[i]);
            else
                best_left = std::max(best_left, bounds[i]);
        }
        ASSERT_LE(best_left, worst_read + 1e-5 * std::max(1.0, std::abs(best_left)));
    }
}

TEST(Quest, OfEqualPagesReadsTheYounger) {
    KeyPages pages;
    pages.begin(2, 1);
    const float one = 1;
    for (int p = 0; p < 10; ++p) pages.add(p, &one);
    EXPECT_EQ(chosen_of(pages, &one, 2, true), (std::vector<int>{3, 4}));
    pages.begin(2, 1);
    EXPECT_EQ(pages.n_tokens(), 10) << "the same pages go on";
    pages.begin(5, 1);
    EXPECT_EQ(pages.n_tokens(), 0) << "others begin anew";
    EXPECT_EQ(pages.bytes(), 0);
}

TEST(Quest, QueriesHaveTheSameBoundsTogetherAsAlone) {
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    constexpr int kDim = 24;
    KeyPages pages;
    pages.begin(4, kDim);
    const auto vector = [&] {
        std::vector<float> numbers(kDim);
        for (float& x : numbers) x = normal(random);
        return numbers;
    };
    for (int p = 0; p < 150; ++p) pages.add(p, vector().data());
    std::vector<std::vector<float>> queries;
    std::vector<const float*> of;
    for (int i = 0; i < 7; ++i) queries.push_back(vector());
    for (const auto& query : queries) of.push_back(query.data());
    for (std::size_t n = 1; n <= queries.size(); ++n) {
        const std::span<const float* const> some = std::span(of).first(n);
        const PageBounds together = bounds_of(pages, some);
        PageBounds in_parts;
        in_parts.begin(n, to_index(pages.n_pages()));
        for (const auto& [first, last] : {std::pair{16, 32}, {32, pages.n_pages()}, {0, 16}})
            pages.bound(some, first, last, in_parts);
        EXPECT_EQ(in_parts.values, together.values);
        for (std::size_t i = 0; i < n; ++i)
            EXPECT_EQ(together.values[i], bounds_of(pages, {&of[i], 1}).values[0]) << n << ' ' << i;
    }
}

// Field, section 14.
TEST(Quest, PagesWithNaNComeLast) {
    constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
    KeyPages pages;
    pages.begin(1, 1);
    for (int p = 0; p < 40; ++p) {
        const float key = p % 3 == 0 ? kNaN : static_cast<float>(p);
        pages.add(p, &key);
    }
    const float query = 1;
    EXPECT_EQ(chosen_of(pages, &query, 4, false), (std::vector<int>{34, 35, 37, 38}));
    EXPECT_EQ(chosen_of(pages, &kNaN, 4, false), (std::vector<int>{36, 37, 38, 39})) << "all are equal";
}

TEST(FieldExamples, QuestReadsPages) {
    const float units[8][2] = {{1, 0},      {0, 1},       {.6f, .8f},   {.8f, .6f},
                               {-.6f, .8f}, {.28f, .96f}, {.96f, .28f}, {-.8f, .6f}};
    const float lengths[8] = {5, 2, 1, 10, 4, 3, 7, 6}, query[2] = {1, -1};
    KeyPages pages;
    pages.begin(2, 2);
    for (int p = 0; p < 8; ++p) {
        const float key[2] = {lengths[p] * units[p][0], lengths[p] * units[p][1]};
        pages.add(p, key);
    }
    const float* const queries[] = {query};
    const PageBounds bounds = bounds_of(pages, queries);
    EXPECT_EQ(chosen_of(pages, query, 2, true), (std::vector<int>{1, 3})) << "four tokens";
    const std::vector<float> expected = {5, 7.2f, -2.04f, 4.76f};
    for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(bounds.values[0][i], expected[i], 1e-5) << i;
    EXPECT_EQ(chosen_of(pages, query, 3, false), (std::vector<int>{0, 1, 3}))
        << "the evaluation code: three pages, any of them";
}

// --- kernels -----------------------------------------------------------------------------------------------

/// A KV head of a device with one query head. The first n tokens lie in any order of slots.
class DevicePages {
  public:
    static constexpr int kDim = 16, kCapacity = 900, kStride = 4200;

    DevicePages(keyhole::cuda::PageRule rule, int n, unsigned seed) : rule_(rule), random_(seed) {
        std::iota(order_.begin(), order_.end(), 0);
        std::shuffle(order_.begin(), order_.begin() + n, random_);
        head_.keys = keys_.data();
        head_.values = keys_.data();
        head_.positions = positions_.data();
        head_.capacity = kCapacity;
        view_.heads = &head_;
        view_.order = order_.data();
        view_.list_stride = kCapacity;
        view_.pages = {&rule_, extremes_.data(), n_tokens_.data(), kStride, 0};
    }

    /// Stores a token as BeginRow and AttendSplit do.
    void store(int position, const std::vector<float>& key) {
        const int slot = order_[to_index(head_.count++)];
        positions_[to_index(slot)] = position;
        for (int c = 0; c < kDim; ++c)
            keys_[to_index((c / 8 * kCapacity + slot) * 8 + c % 8)] = key[to_index(c)];
    }

    /// Runs the kernels of a row whose token has this key. borrows: the key is in its slot before.
    void choose(int row, const std::vector<float>& query, const std::vector<float>& key, bool borrows) {
        const auto order = static_cast<int>(random_() % 4);
        const auto seed = static_cast<std::uint32_t>(random_());
        view_.row = row;
        if (borrows) store(row, key);
        if (!borrows) ++head_.count;
        using namespace keyhole::cuda;
        run_on_host(SummarisePages<float>{&view_, kDim}, {SummarisePages<float>::kBlocks, 1, 1}, 64, order,
                    seed, 0xff);
        AttendSplit<float> attend{};
        attend.q = query.data();
        attend.k = borrows ? nullptr : key.data();
        attend.v = key.data();
        attend.lanes = &view_;
        attend.kv_of_head = &kv_of_head_;
        attend.n_heads = attend.n_kv = 1;
        attend.head_dim = attend.finish.head_dim = kDim;
        run_on_host(BoundPages<float>{attend, bounds_.data(), kStride}, {kStride / kSplit + 1, 1, 1}, kSplit,
                    order, seed, 0xff);
        run_on_host(ChoosePages<float>{&view_, &kv_of_head_, bounds_.data(), {read_.data(), 0}, 1, kStride},
                    {1, 1, 1}, ChoosePages<float>::kThreads, order, seed, 0xff);
        if (!borrows) --head_.count;
        if (!borrows) store(row, key);
        view_.pages.stale_from = row;
    }
    /// By page of the text; NaN: it has no token.
    float bound(int page) const { return bounds_[to_index(page)]; }
    bool is_read(int page) const { return read_[to_index(page)] != 0; }

  private:
    keyhole::cuda::PageRule rule_;
    std::mt19937 random_;
    std::vector<float> keys_ = std::vector<float>(kCapacity * kDim),
                       bounds_ = std::vector<float>(kStride, -7),
                       extremes_ = std::vector<float>(kStride * kDim * 2, -7);
    std::vector<std::int32_t> positions_ = std::vector<std::int32_t>(kCapacity),
                              order_ = std::vector<std::int32_t>(kCapacity),
                              n_tokens_ = std::vector<std::int32_t>(kStride, -7);
    std::vector<std::uint8_t> read_ = std::vector<std::uint8_t>(kStride, 7);
    std::int32_t kv_of_head_ = 0;
    keyhole::cuda::DeviceHead<float> head_{};
    keyhole::cuda::LaneView<float> view_{};
};

/// Returns which pages a query reads, by their numbers in the text.
std::set<int> pages_of_host(const std::map<int, std::vector<float>>& keys, int length, int n_read, bool own,
                            const std::vector<float>& query, std::map<int, float>& bounds) {
    KeyPages pages;
    pages.begin(length, static_cast<int>(query.size()));
    std::vector<int> numbers;  // of the pages that hold tokens
    for (const auto& [position, key] : keys) {
        pages.add(position, key.data());
        if (numbers.empty() || numbers.back() != position / length) numbers.push_back(position / length);
    }
    const float* const of = query.data();
    const std::vector<float> values = bounds_of(pages, {&of, 1}).values[0];
    for (std::size_t i = 0; i < numbers.size(); ++i) bounds[numbers[i]] = values[i];
    if (pages.n_pages() <= n_read) return {numbers.begin(), numbers.end()};
    std::set<int> read;
    for (const int page : chosen_of(pages, of, n_read, own)) read.insert(numbers[to_index(page)]);
    return read;
}

TEST(Quest, KernelsChooseWhatTheHostChooses) {
    std::mt19937 random(11);
    const auto number = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    int n_ties = 0, n_empty = 0;
    for (int round = 0; round < n_choices() / 4; ++round) {  // of four rows
        const int length = std::vector{1, 3, 7, 16}[to_index(number(4))], n_read = 1 + number(40);
        const bool own = number(2) == 0, coarse = number(2) == 0;
        const int n_stored = 1 + number(500);
        DevicePages device({length, n_read, own ? 1 : 0, 0}, n_stored, static_cast<unsigned>(round));
        const auto vector = [&] {
            std::vector<float> numbers(DevicePages::kDim);
            for (float& x : numbers)
                x = coarse ? static_cast<float>(number(3) - 1)
                           : static_cast<float>(number(2000) - 1000) / 997.0f;
            if (number(40) == 0) numbers[3] = std::numeric_limits<float>::quiet_NaN();
            return numbers;
        };
        std::map<int, std::vector<float>> keys;
        int row = 0;
        for (int n = 0; n < n_stored; ++n, row += 1 + number(number(20) == 0 ? 60 : 3)) {
            keys[row] = vector();
            device.store(row, keys[row]);
        }
        for (int step = 0; step < 4; ++step, row += 1 + number(3)) {
            const std::vector<float> query = vector();
            keys[row] = vector();
            device.choose(row, query, keys[row], number(2) == 0);
            std::map<int, float> bounds;
            const std::set<int> read = pages_of_host(keys, length, n_read, own, query, bounds);
            std::map<float, int> equal;
            for (int page = 0; page <= row / length; ++page) {
                SCOPED_TRACE(fmt::format("round {}, row {}, page {} of {}, {} are read", round, row, page,
                                         length, n_read));
                ASSERT_EQ(device.is_read(page), read.contains(page));
                if (bounds.contains(page)) {
                    ASSERT_EQ(device.bound(page), bounds[page]);
                } else {
                    ASSERT_TRUE(std::isnan(device.bound(page)));
                }
                n_empty += bounds.contains(page) ? 0 : 1;
                n_ties += bounds.contains(page) && equal[bounds[page]]++ > 0 ? 1 : 0;
            }
        }
    }
    EXPECT_GT(n_ties, 1000);
    EXPECT_GT(n_empty, 1000);
}

// --- steps -------------------------------------------------------------------------------------------------

std::unique_ptr<keyhole::Backend> backend_of(const std::shared_ptr<const keyhole::Model>& model,
                                             bool on_device) {
    if (on_device) return cuda_backend(model);
    std::string notice;
    return keyhole::make_backend(model, {keyhole::BackendChoice::cpu, 2, 0}, &notice);
}

struct ReadLane {
    const char* spec;
    int n_read, page;     ///< pages
    int first_layer = 2;  ///< the first that reads a part
    bool own = true;
};

/// Returns what a query head reads, by sets and sorting.
std::set<int> read_by(const ReadLane& lane, const Vector& query, const std::set<int>& stored,
                      const std::function<Vector(int)>& key_of) {
    std::map<int, std::set<int>> pages;
    for (const int p : stored) pages[p / lane.page].insert(p);
    if (static_cast<int>(pages.size()) <= lane.n_read) return stored;
    std::vector<std::pair<double, int>> ranked;
    for (const auto& [page, positions] : pages) {
        std::vector<Vector> keys;
        for (const int p : positions) keys.push_back(key_of(p));
        const bool is_own = page == pages.rbegin()->first && lane.own;
        ranked.emplace_back(is_own ? std::numeric_limits<double>::infinity() : bound_of(query, keys), page);
    }
    std::sort(ranked.rbegin(), ranked.rend());
    std::set<int> read;
    for (int i = 0; i < lane.n_read; ++i)
        read.insert(pages[ranked[to_index(i)].second].begin(), pages[ranked[to_index(i)].second].end());
    return read;
}

/// Runs the lane on the engine and on the reference with the same tokens. From `hand` on a token is gone from
/// every KV head, so that slots are out of order.
void expect_agreement(keyhole::Backend& backend, const std::shared_ptr<const keyhole::Model>& model,
                      const Weights& weights, const ReadLane& lane, int hand) {
    constexpr int kPrompt = 30, kDecode = 10, kGone = 7;
    const std::vector<int> tokens = random_tokens(kPrompt + kDecode, 5);
    const auto policy =
        keyhole::resolve(keyhole::parse_lane_spec(std::string(lane.spec) + ",kv_dtype=f32").policy, kPrompt,
                         kDecode, keyhole::head_grid(model->layout()));
    const auto cache = backend.make_cache(policy);
    Sequence sequence(weights);
    PositionSets stored = empty_sets(weights);
    std::vector<std::vector<std::set<int>>> read(to_index(weights.n_layers));
    bool reads_part = false;
    const int group = weights.n_heads / weights.n_kv_heads;
    sequence.set_reads([&](int layer, int head, const Vector& query, const std::set<int>& all) {
        std::set<int> own = all;
        const int owner = weights.owner_of(layer);
        if (reads_part && owner >= lane.first_layer)
            own = read_by(lane, query, all, [&](int p) { return sequence.key(owner, head / group, p); });
        read[to_index(layer)][to_index(head)] = own;
        return own;
    });
    keyhole::RowOutput out;
    constexpr keyhole::RowRequest kAll{true, true, true, true, false, keyhole::RowForm::floats};
    const keyhole::LanePrefill prefill{cache.get(), kAll, &out};
    backend.prefill(std::span(tokens).first(kPrompt), std::span(&prefill, 1), nullptr, {});
    int n_part = 0;
    for (int row = 0; row < kPrompt + kDecode; ++row) {
        for (auto& of_layer : read) of_layer.assign(to_index(weights.n_heads), {});
        reads_part = row >= kPrompt;
        for (int g = 0; row == hand && g < model->layout().n_kv_heads(); ++g)
            EXPECT_TRUE(cache->evict(g, kGone));
        if (row == hand)
            for (auto& of_layer : stored)
                for (auto& of_head : of_layer) of_head.erase(kGone);
        const Row expected = sequence.feed(tokens[to_index(row)], stored, Places::original, true,
                                           row < kPrompt ? 0 : -1);  // the prompt is one call
        for (int l = 0; l < weights.n_layers; ++l)
            for (int g = 0; g < weights.n_kv_heads && weights.owns(l); ++g)
                stored[to_index(l)][to_index(g)].insert(row);
        if (row < kPrompt) continue;
        const keyhole::LaneStep step{cache.get(), tokens[to_index(row)], row, kAll, &out};
        backend.step(std::span(&step, 1));
        for (int g = 0; g < model->layout().n_kv_heads(); ++g) {
            const keyhole::KvHead& kv = model->layout().kv_head(g);
            const auto begin = to_index(out.values.offset[to_index(g)]),
                       end = to_index(out.values.offset[to_index(g) + 1]);
            for (std::size_t i = begin; i < end; ++i) {
                const int p = out.values.positions[i];
                bool is_read = false;
                for (const keyhole::HeadRef& reader : kv.readers) {
                    const bool own = read[to_index(reader.layer)][to_index(reader.head)].contains(p);
                    is_read = is_read || own;
                    n_part += own ? 0 : 1;
                    const int head = reader.layer * weights.n_heads + reader.head;
                    const auto at = to_index(out.values.head_offset[to_index(head)]) + i - begin;
                    ASSERT_NEAR(
                        out.values.attention[at],
                        expected.attention[to_index(reader.layer)][to_index(reader.head)][to_index(p)], 1e-4)
                        << lane.spec << ", row " << row << ", token " << p << ", L" << reader.layer << ".H"
                        << reader.head;
                    ASSERT_EQ(std::isnan(out.values.logits[at]), !own) << lane.spec << ", token " << p;
                }
                const bool hidden = !out.values.hidden.empty() && out.values.hidden[i] != 0;
                ASSERT_EQ(hidden, !is_read) << lane.spec << ", row " << row << ", token " << p;
            }
        }
        for (std::size_t v = 0; v < expected.next_logits.size(); ++v)
            ASSERT_NEAR(out.next_logits[v], expected.next_logits[v], 2e-3) << lane.spec << ", row " << row;
    }
    EXPECT_EQ(n_part > 0, lane.first_layer < weights.n_layers) << lane.spec;
    EXPECT_EQ(cache->stored_positions(0).size(), to_index(kPrompt + kDecode - (hand > 0 ? 1 : 0)))
        << "nothing leaves";
}

TEST(Quest, AgreesWithTheReference) {
    const std::vector<ReadLane> lanes = {
        {"quest:read=12,page=4", 3, 4},  {"quest:read=8,page=1", 8, 1},
        {"quest:read=2,page=5", 1, 5},   {"quest:read=12,page=4,read@L0-1=12", 3, 4, 0},
        {"full:read=9,page=3", 3, 3, 0}, {"quest:read=8,page=4,dialect=released", 3, 4, 2, false},
        {"quest:read=1000", 62, 16, 99}, {"quest:page=16", 64, 16, 99},
    };
    for (const int n_kv_heads : {1, 2, 4}) {
        TinyShape shape;
        shape.n_layers = 4;
        shape.n_kv_heads = n_kv_heads;
        shape.n_kv_layers = n_kv_heads == 1 ? 2 : 0;
        const TinyModel tiny(shape);
        const auto model = keyhole::load_model(tiny.folder());
        const Weights weights = load_weights(tiny.folder());
        for (const bool on_device : {false, true}) {
            const auto backend = backend_of(model, on_device);
            for (const ReadLane& lane : lanes)
                for (const int hand : {-1, 33}) {
                    SCOPED_TRACE(fmt::format("{}, {} KV heads, by hand at {}, {}", lane.spec, n_kv_heads,
                                             hand, backend->name()));
                    expect_agreement(*backend, model, weights, lane, hand);
                    if (::testing::Test::HasFatalFailure()) return;
                }
        }
    }
}

// A step that reads all pages has the bits of a full lane; other types store the bounds of what they hold.
TEST(Quest, ReadsAllAsFullDoes) {
    TinyShape shape;
    shape.n_layers = 3;
    const TinyModel tiny(shape);
    const auto model = keyhole::load_model(tiny.folder());
    const std::vector<int> tokens = random_tokens(40, 3);
    const std::span<const int> all(tokens);
    const std::vector<std::string> specs = {"full", "quest", "quest:read=48,page=4,read@L0-1=48",
                                            "quest:read=8,page=4,kv_dtype=bf16",
                                            "full:read=8,page=4,read@L0-1=all,kv_dtype=bf16"};
    for (const bool on_device : {false, true}) {
        const auto backend = backend_of(model, on_device);
        const LaneRows rows = run_backend(*backend, model, specs, all.first(24), all.subspan(24));
        for (std::size_t t = 0; t < rows[0].size(); ++t) {
            EXPECT_EQ(difference(rows[0][t], rows[1][t]), "") << t;
            EXPECT_EQ(difference(rows[0][t], rows[2][t]), "") << t;
            EXPECT_EQ(difference(rows[3][t], rows[4][t]), "") << t;
        }
        EXPECT_NE(rows[3].back().next_logits, rows[0].back().next_logits);
    }
}

// Rows that read pages of what a policy leaves: on both backends, with commands, copies and tokens that leave
// by hand between the rows, and KV heads that differ in what they read.
TEST(Quest, OnADeviceFollowsTheCpu) {
    for (const int n_kv_heads : {1, 2}) {
        TinyShape shape;
        shape.n_layers = 4;
        shape.n_kv_heads = n_kv_heads;
        shape.n_kv_layers = n_kv_heads == 1 ? 2 : 0;
        Pair pair(shape);
        pair.start({"quest:read=12,page=4,shadow=on", "h2o:budget=24,read=9,page=3",
                    "tova:budget=20,read=8,page=2", "full:read=10,page=5,read@L1=all,read@L3=15",
                    "snapkv:budget=16,read=8,page=4", "keyformer:budget=22,read=6,page=3,kv_dtype=bf16",
                    "h2o:budget=24", "full", "quest:read=20,page=1"});
        pair.step(5);
        pair.evict(0, 0, 11);
        pair.apply(6, "h2o:budget=24,read=8,page=4");
        pair.apply(2, "tova:budget=20,read=9,page=3");
        pair.fork(1);
        pair.step(4);
        pair.apply(1, "h2o:budget=12,read=6,page=3");
        pair.apply(0, "quest:read=15,page=5");
        pair.step(5);
        pair.compare(fmt::format("{} KV heads", n_kv_heads));
    }
}

TEST(Quest, OnADeviceStandsAlone) {
    TinyShape shape;
    shape.n_layers = 3;
    const TinyModel tiny(shape);
    const auto model = keyhole::load_model(tiny.folder());
    const std::vector<std::string> specs = {"quest:read=8,page=4", "h2o:budget=20,read=8,page=2", "full"};
    expect_lanes_stand_alone(model, specs);
    EXPECT_EQ(graphs_of(model, {"quest:read=8,page=4"}), graphs_of(model, {"full"}));
    keyhole::RunSpec spec;
    spec.prompt = "The lighthouse keeper counts the ships of the night and goes to sleep.";
    spec.n_generate = 40;
    spec.ignore_eos = true;
    spec.lanes = {keyhole::parse_lane_spec("quest:read=12,page=4"),
                  keyhole::parse_lane_spec("h2o:budget=32,read=16,page=4")};
    expect_sessions_follow_the_cpu(model, spec,
                                   {"step 14", "lane 1 h2o:budget=24,read=8,page=4", "step 12", "evict 0 5",
                                    "fork 0 tova:budget=20,read=8,page=4", "step 10"});
}

// A copy, and a lane that begins to read pages in the middle of a run, go on as one that always did.
void expect_alike(const std::shared_ptr<const keyhole::Model>& model, bool on_device) {
    const auto backend = backend_of(model, on_device);
    const std::vector<int> tokens = random_tokens(44, 9);
    const auto policy = [&](const char* spec) {
        return keyhole::resolve(keyhole::parse_lane_spec(spec).policy, 20, 24,
                                keyhole::head_grid(model->layout()));
    };
    const auto quest = policy("quest:read=8,page=4");
    auto cache = backend->make_cache(quest), late = backend->make_cache(policy("full")),
         full = backend->make_cache(policy("full"));
    keyhole::RowOutput out, of_copy, of_late, of_full;
    std::vector<keyhole::LanePrefill> lanes = {
        {cache.get(), {}, &out}, {late.get(), {}, &of_late}, {full.get(), {}, &of_full}};
    backend->prefill(std::span(tokens).first(20), lanes, nullptr, {});
    EXPECT_TRUE(backend->apply_policy(*late, quest, 19).empty());
    std::unique_ptr<keyhole::KvCache> copy;
    for (int row = 20; row < 44; ++row) {
        if (row == 26) copy = cache->clone();
        if (row == 34) {  // other numbers are stored: a later copy computes all bounds anew
            const auto rounded = policy("quest:read=8,page=4,kv_dtype=bf16");
            EXPECT_TRUE(backend->apply_policy(*cache, rounded, row - 1).empty());
            EXPECT_TRUE(backend->apply_policy(*late, rounded, row - 1).empty());
            copy = cache->clone();
        } else if (row == 33) {
            // Least and largest of each channel, of three pages of 16 side by side, in the layer that reads a
            // part.
            const std::int64_t bounds =
                to_index(model->layout().n_kv_heads() / 3) * 16 * 2 * to_index(model->config().head_dim) * 4;
            EXPECT_GE(cache->use().allocated_bytes - full->use().allocated_bytes, bounds);
            EXPECT_EQ(cache->use().stored_bytes, full->use().stored_bytes);
        }
        std::vector<keyhole::LaneStep> steps = {{cache.get(), tokens[to_index(row)], row, {}, &out},
                                                {late.get(), tokens[to_index(row)], row, {}, &of_late},
                                                {full.get(), tokens[to_index(row)], row, {}, &of_full}};
        if (copy) steps.push_back({copy.get(), tokens[to_index(row)], row, {}, &of_copy});
        backend->step(steps);
        ASSERT_EQ(out.next_logits, of_late.next_logits) << row;
        if (copy) {
            ASSERT_EQ(out.next_logits, of_copy.next_logits) << row;
        }
    }
}

TEST(Quest, CopiesAndChangesGoOnAlike) {
    TinyShape shape;
    shape.n_layers = 3;
    const TinyModel tiny(shape);
    const auto model = keyhole::load_model(tiny.folder());
    for (const bool on_device : {false, true}) {
        SCOPED_TRACE(on_device ? "on a device" : "on the CPU");
        expect_alike(model, on_device);
    }
}

// --- words -------------------------------------------------------------------------------------------------

TEST(Quest, SaysWhatItReads) {
    const auto policy = [](const std::string& spec) {
        return keyhole::resolve(keyhole::parse_lane_spec(spec).policy, 100, 10);
    };
    EXPECT_EQ(keyhole::accounting_text(policy("quest")),
              "keeps all tokens; a decode step attends to 64 pages of 16");
    EXPECT_EQ(policy("quest:read=40").n_pages_read(), 2) << "whole pages, rounded down";
    EXPECT_EQ(policy("quest:read=4").n_pages_read(), 1) << "its own at least";
    EXPECT_EQ(policy("quest:read=4,dialect=released").n_pages_read(), 3);
    EXPECT_EQ(policy("quest:read=40").attended_when_full(), 40);
    EXPECT_FALSE(policy("quest").evicts());
    EXPECT_FALSE(policy("quest:read=all").reads_pages());
    EXPECT_FALSE(policy("quest:positions=cache").reads_pages()) << "bounds are of keys as stored";
    const auto whole = keyhole::without_eviction(keyhole::parse_lane_spec("quest"));
    EXPECT_EQ(keyhole::format_lane_spec(whole), "full");
    const keyhole::PolicyParams changed =
        keyhole::with_preset(keyhole::parse_lane_spec("h2o:budget=64").policy, keyhole::Preset::quest);
    EXPECT_EQ(keyhole::format_lane_spec({changed, {}}), "quest")
        << "it keeps all, and its first layers read all";
    EXPECT_EQ(keyhole::format_lane_spec(keyhole::parse_lane_spec("quest:read=64,read@L2=all")),
              "quest:read=64,read@L2=all");
}

TEST(Quest, RefusesWhatDoesNotGoTogether) {
    const auto fault = [](const char* spec) -> std::string {
        try {
            (void)keyhole::parse_lane_spec(spec);
        } catch (const keyhole::Error& error) {
            return error.what();
        }
        return "";
    };
    for (const auto& [spec, says] :
         std::vector<std::pair<const char*, const char*>>{{"quest:read=50%", "a number of tokens"},
                                                          {"quest:read=rest", "a number of tokens"},
                                                          {"quest:unit=4", "leave one of them out"},
                                                          {"dilated:read=16", "takes another preset"},
                                                          {"quest:page=0", "page must be"}})
        EXPECT_NE(fault(spec).find(says), std::string::npos) << spec << ": " << fault(spec);
}

}  // namespace
}  // namespace reference::test_quest
