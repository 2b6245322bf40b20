#include "app/view/override_grid.h"

#include "engine/policy/lane_spec.h"

#include <gtest/gtest.h>

#include <random>

namespace keyhole::test_override_grid {
namespace {

using Field = Override::Field;

HeadGrid grid_of(int n_layers, int n_heads, int group) {
    HeadGrid grid{n_layers, n_heads, {}};
    for (int l = 0; l < n_layers; ++l)
        for (int h = 0; h < n_heads; ++h) grid.kv_head.push_back(l * (n_heads / group) + h / group);
    return grid;
}

PolicyParams params(std::string_view spec) {
    return parse_lane_spec(spec).policy;
}

OverrideValue number(double value) {
    return {{}, value, {}};
}

std::string painted(std::string_view spec, Field field, const HeadGrid& heads, auto&& paint) {
    OverrideGrid grid(params(spec), field, heads);
    paint(grid);
    return format_lane_spec({grid.written(params(spec))});
}

TEST(OverrideGrid, CellsRowsAndColumnsHaveShortNames) {
    const HeadGrid heads = grid_of(6, 8, 1);
    const auto one = [&](int l0, int l1, int h0, int h1) {
        return painted("a2sf", Field::alpha, heads,
                       [&](OverrideGrid& g) { g.paint(l0, l1, h0, h1, number(0.5)); });
    };
    EXPECT_EQ(one(2, 2, 3, 3), "a2sf:alpha@L2.H3=0.5");
    EXPECT_EQ(one(2, 4, 0, 7), "a2sf:alpha@L2-4=0.5");
    EXPECT_EQ(one(0, 5, 1, 2), "a2sf:alpha@H1-2=0.5");
    EXPECT_EQ(one(0, 5, 0, 7), "a2sf:alpha@L0-5=0.5");
}

TEST(OverrideGrid, AnExceptionCostsOneRangeMore) {
    const HeadGrid heads = grid_of(6, 8, 1);
    EXPECT_EQ(painted("a2sf", Field::alpha, heads,
                      [&](OverrideGrid& g) {
                          g.paint(0, 3, 0, 7, number(0.5));
                          g.paint(1, 1, 4, 4, number(0.75));
                      }),
              "a2sf:alpha@L0-3=0.5,alpha@L1.H4=0.75");
    // A hole can only be omitted: the spec has no name for a lane's own value.
    const std::string hole = painted("a2sf", Field::alpha, heads, [&](OverrideGrid& g) {
        g.paint(0, 2, 0, 7, number(0.5));
        g.paint(1, 1, 0, 7, std::nullopt);
    });
    EXPECT_EQ(hole, "a2sf:alpha@L0,L2=0.5");
}

TEST(OverrideGrid, HeadsThatShareMoveTogether) {
    const HeadGrid grouped = grid_of(4, 8, 4);
    EXPECT_EQ(painted("h2o", Field::gain, grouped, [&](OverrideGrid& g) { g.paint(1, 1, 5, 5, number(2)); }),
              "h2o:gain@L1.H4-7=2");
    EXPECT_EQ(painted("tova", Field::budget, grouped,
                      [&](OverrideGrid& g) {
                          g.paint(2, 2, 5, 5, OverrideValue{{Amount::Unit::tokens, 32}, 0, {}});
                      }),
              "tova:budget@L2=32");
    EXPECT_EQ(painted("h2o:scope=shared", Field::alpha, grouped,
                      [&](OverrideGrid& g) { g.paint(2, 2, 5, 5, number(0.5)); }),
              "h2o:scope=shared,alpha@L0-3=0.5");
    // The released dialect fixes the scope of H2O to head, whatever is requested.
    EXPECT_EQ(painted("h2o:scope=layer,dialect=released", Field::alpha, grouped,
                      [&](OverrideGrid& g) { g.paint(2, 2, 5, 5, number(0.5)); }),
              "h2o:scope=layer,dialect=released,alpha@L2.H4-7=0.5");
}

TEST(OverrideGrid, FormulasArePaintedLikeNumbers) {
    const HeadGrid grouped = grid_of(4, 8, 4);
    const OverrideValue knorm{{}, 0, {}, {"-knorm"}}, u{{}, 0, {}, {"u"}};
    EXPECT_EQ(painted("key:choose@L0=(s/(age+1))", Field::choose, grouped,
                      [&](OverrideGrid& g) {
                          EXPECT_EQ(g.formula_index(0, 3), 1);
                          EXPECT_EQ(g.formula_index(1, 3), 0) << "the lane's own";
                          g.paint(1, 2, 5, 5, knorm);
                          g.paint(3, 3, 0, 7, u);
                      }),
              "key:choose@L0=(s/(age+1)),choose@L1-3.H4-7=(-knorm),choose@L3=(u)");
    EXPECT_EQ(painted("tova:protect@L1=2..4,score@L2=(p)", Field::score, grouped,
                      [&](OverrideGrid& g) { g.paint(0, 3, 0, 7, std::nullopt); }),
              "tova:protect@L1=2..4");
    EXPECT_EQ(own_value(params("key:choose=(u)"), Field::choose), u);
}

TEST(OverrideGrid, OtherFieldsStay) {
    const HeadGrid heads = grid_of(4, 4, 1);
    EXPECT_EQ(painted("a2sf:budget@L0=16,alpha@L1=0.5,alpha@L2=0.5", Field::alpha, heads,
                      [&](OverrideGrid& g) { g.paint(3, 3, 0, 3, number(0.5)); }),
              "a2sf:budget@L0=16,alpha@L1-3=0.5");
    EXPECT_EQ(painted("a2sf:budget@L0=16,alpha@L1=0.5", Field::alpha, heads,
                      [&](OverrideGrid& g) { g.paint(0, 3, 0, 3, std::nullopt); }),
              "a2sf:budget@L0=16");
}

/// For any painting: the spec gives each head its painted value, the model accepts the spec, and it uses no
/// more ranges than painted cells.
TEST(OverrideGrid, RandomPaintingsComeBack) {
    std::minstd_rand random(7);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    for (int round = 0; round < 300; ++round) {
        const int group = 1 << below(3);
        const HeadGrid heads = grid_of(1 + below(6), 4 * (1 + below(2)), group);
        const std::string spec = below(3) == 0 ? "tova" : "keyformer";
        OverrideGrid grid(params(spec), Field::alpha, heads);
        for (int stroke = below(6); stroke >= 0; --stroke) {
            const int l0 = below(heads.n_layers), h0 = below(heads.n_heads);
            std::optional<OverrideValue> value;
            if (below(4) != 0) value = number(0.25 * (1 + below(3)));
            grid.paint(l0, l0 + below(heads.n_layers - l0), h0, h0 + below(heads.n_heads - h0), value);
        }
        const PolicyParams written = grid.written(params(spec));
        EXPECT_TRUE(check_overrides(written, heads).empty());
        const PolicyParams read = parse_lane_spec(format_lane_spec({written})).policy;
        EXPECT_EQ(read, written);
        const ResolvedPolicy policy = resolve(read, 100, 10, heads);
        std::size_t n_told = 0;
        const double own = params(spec).alpha;
        for (int l = 0; l < heads.n_layers; ++l)
            for (int h = 0; h < heads.n_heads; ++h) {
                n_told += grid.at(l, h) ? 1 : 0;
                EXPECT_FLOAT_EQ(static_cast<float>(effective_value(policy, Field::alpha, l, h, 0)),
                                static_cast<float>(grid.at(l, h) ? grid.at(l, h)->value : own));
            }
        EXPECT_LE(read.overrides.size(), n_told);
        EXPECT_EQ(grid.empty(), read.overrides.empty());
    }
}

}  // namespace
}  // namespace keyhole::test_override_grid
