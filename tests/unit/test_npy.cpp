#include "engine/base/index.h"
#include "engine/base/npy.h"

#include "engine/base/error.h"
#include "engine/base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>

namespace keyhole::test_npy {
namespace {

std::filesystem::path scratch(const std::string& name) {
    return std::filesystem::path(::testing::TempDir()) / ("keyhole_npy_" + name);
}

std::string message_of(const std::function<void()>& call) {
    try {
        call();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::bad_file);
        return error.what();
    }
    ADD_FAILURE() << "no error";
    return {};
}

TEST(Npy, HeaderIsTheFormatOfTheStandard) {
    const std::string header = npy_header("<f4", {2, 3});
    EXPECT_EQ(header.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
    EXPECT_EQ(header.size() % 64, 0u);
    EXPECT_EQ(
        to_index(static_cast<unsigned char>(header[8])) + 256u * static_cast<unsigned char>(header[9]) + 10,
        header.size());
    EXPECT_EQ(header.back(), '\n');
    EXPECT_EQ(header.substr(10, 59), "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }");
    EXPECT_NE(npy_header("<i4", {5}).find("(5,)"), std::string::npos);  // a tuple with one element
    EXPECT_NE(npy_header("<i4", {}).find("()"), std::string::npos);
}

TEST(Npy, WrittenInAnyOrderReadsBack) {
    const auto path = scratch("order.npy");
    {
        NpyWriter writer(path, NpyType::f32, {3, 4});
        writer.write(8, std::vector<float>{8, 9, NAN, 11});
        writer.write(1, std::vector<float>{1, 2});
        writer.close();
    }
    const NpyArray array = read_npy(path);
    EXPECT_EQ(array.shape, (NpyShape{3, 4}));
    const std::vector<float> values = array.as<float>();
    const std::vector<float> expected{0, 1, 2, 0, 0, 0, 0, 0, 8, 9, NAN, 11};
    for (std::size_t i = 0; i < 12; ++i) {
        if (std::isnan(expected[i]))
            EXPECT_TRUE(std::isnan(values[i]));
        else
            EXPECT_EQ(values[i], expected[i]);
    }
    std::filesystem::remove(path);
}

TEST(Npy, HalfPrecisionRoundsToNearest) {
    const auto path = scratch("half.npy");
    NpyWriter writer(path, NpyType::f16, {3});
    writer.write(0, std::vector<float>{0.1f, 1, NAN});
    writer.close();
    const NpyArray array = read_npy(path);
    EXPECT_EQ(array.type, NpyType::f16);
    EXPECT_EQ(array.value(0), float_from_fp16(fp16_from_float(0.1f)));
    EXPECT_EQ(array.value(1), 1);
    EXPECT_TRUE(std::isnan(array.value(2)));
    std::filesystem::remove(path);
}

TEST(Npy, ShrinkKeepsWhatStandsAtTheRemainingIndices) {
    const auto path = scratch("shrink.npy");
    NpyWriter writer(path, NpyType::f32, {4, 2, 3, 5});
    for (int a = 0; a < 4; ++a)
        for (int b = 0; b < 2; ++b)
            for (int c = 0; c < 3; ++c)
                for (int d = 0; d < 5; ++d)
                    writer.write(((a * 2 + b) * 3 + c) * 5 + d,
                                 std::vector<float>{static_cast<float>(a * 1000 + b * 100 + c * 10 + d)});
    writer.shrink({3, 2, 2, 4});
    writer.close();
    const NpyArray array = read_npy(path);
    ASSERT_EQ(array.shape, (NpyShape{3, 2, 2, 4}));
    for (int a = 0; a < 3; ++a)
        for (int b = 0; b < 2; ++b)
            for (int c = 0; c < 2; ++c)
                for (int d = 0; d < 4; ++d)
                    EXPECT_EQ(array.value(((a * 2 + b) * 2 + c) * 4 + d),
                              static_cast<float>(a * 1000 + b * 100 + c * 10 + d));
    std::filesystem::remove(path);
}

TEST(Npy, ShrinkToNothing) {
    const auto path = scratch("nothing.npy");
    NpyWriter writer(path, NpyType::f32, {4, 5});
    writer.shrink({0, 3});
    writer.close();
    EXPECT_EQ(read_npy(path).shape, (NpyShape{0, 3}));
    std::filesystem::remove(path);
}

TEST(Npy, EncodedArraysOfEveryTypeDecode) {
    const std::vector<std::int32_t> whole{-1, 2, 1 << 30};
    const NpyArray a = decode_npy(encode_npy(NpyType::i32, {3, 1}, whole.data()), "a");
    EXPECT_EQ(a.as<std::int32_t>(), whole);
    EXPECT_EQ(a.shape, (NpyShape{3, 1}));
    const std::vector<std::uint8_t> bytes{0, 255};
    EXPECT_EQ(decode_npy(encode_npy(NpyType::u8, {2}, bytes.data()), "b").as<std::uint8_t>(), bytes);
    EXPECT_TRUE(decode_npy(encode_npy(NpyType::f32, {0, 7}, nullptr), "c").data.empty());
}

TEST(Npy, EveryDamageIsOneErrorThatNamesTheArray) {
    const std::vector<float> data{1, 2, 3, 4};
    const std::vector<std::byte> good = encode_npy(NpyType::f32, {4}, data.data());
    const auto with = [&](auto change) {
        std::vector<std::byte> bytes = good;
        change(bytes);
        const std::string message = message_of([&] { decode_npy(bytes, "member.npy"); });
        EXPECT_NE(message.find("member.npy"), std::string::npos);
        EXPECT_EQ(message.find('\n'), std::string::npos);
        return message;
    };
    const auto replace = [](std::string_view from, std::string_view to) {
        return [=](std::vector<std::byte>& bytes) {
            std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
            text.replace(text.find(from), from.size(), to);
            std::memcpy(bytes.data(), text.data(), bytes.size());
        };
    };
    EXPECT_NE(with([](auto& b) { b[0] = std::byte{0}; }).find("signature"), std::string::npos);
    EXPECT_NE(with([](auto& b) { b[6] = std::byte{9}; }).find("version"), std::string::npos);
    EXPECT_NE(with([](auto& b) { b.resize(5); }).find("signature"), std::string::npos);
    EXPECT_NE(with([](auto& b) { b.resize(60); }).find("cut off"), std::string::npos);
    EXPECT_NE(with([](auto& b) { b.pop_back(); }).find("size"), std::string::npos);
    EXPECT_NE(with([](auto& b) { b.push_back(std::byte{1}); }).find("size"), std::string::npos);
    EXPECT_NE(with(replace("(4,)", "(9,)")).find("size"), std::string::npos);
    EXPECT_NE(with(replace("(4,)", "(x,)")).find("shape"), std::string::npos);
    EXPECT_NE(with(replace("(4,)", "(-4)")).find("shape"), std::string::npos);
    EXPECT_NE(with(replace("<f4", ">f4")).find("type"), std::string::npos);
    EXPECT_NE(with(replace("False", "True ")).find("Fortran"), std::string::npos);
    EXPECT_NE(with(replace("'shape'", "'shope'")).find("lacks"), std::string::npos);
}

TEST(Npy, UnwritableFileIsAnIoError) {
    try {
        NpyWriter writer("/nonexistent-folder/a.npy", NpyType::f32, {1});
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::io);
        EXPECT_NE(std::string(error.what()).find("/nonexistent-folder/a.npy"), std::string::npos);
    }
}

}  // namespace
}  // namespace keyhole::test_npy
