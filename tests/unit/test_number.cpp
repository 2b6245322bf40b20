// The only reader of numbers: accepted forms, and the messages for all others.
#include "engine/base/error.h"
#include "engine/base/number.h"

#include <gtest/gtest.h>

namespace keyhole::test_number {
namespace {

TEST(Number, IsTheWholeTextAndNothingElse) {
    EXPECT_EQ(number_from_text<int>("64"), 64);
    EXPECT_EQ(number_from_text<int>("-64"), -64);
    EXPECT_EQ(number_from_text<int>("010"), 10);
    EXPECT_EQ(number_from_text<std::uint64_t>("18446744073709551615"), 18446744073709551615u);
    EXPECT_EQ(number_from_text<double>("1.5e-3"), 1.5e-3);
    EXPECT_EQ(number_from_text<float>("0.25"), 0.25f);
    for (const char* text : {"", " 1", "1 ", "+1", "1x", "0x10", "1,5", "--1", "1e3", "1.0", "one", "1\n",
                             "2147483648", "-2147483649", "99999999999999999999"})
        EXPECT_FALSE(number_from_text<int>(text)) << text;
    EXPECT_FALSE(number_from_text<std::uint64_t>("-1"));
    EXPECT_FALSE(number_from_text<std::uint64_t>("18446744073709551616"));
    for (const char* text : {"", " 1", "1 ", "+1", "1.5abc", "0x1p3", "nan", "-nan", "inf", "-inf",
                             "infinity", "1e999", "1..2", "1e", "NaN(1)"})
        EXPECT_FALSE(number_from_text<double>(text)) << text;
    EXPECT_FALSE(number_from_text<int>(std::string_view("1\0", 2)));
    EXPECT_FALSE(number_from_text<float>("1e39"));
}

TEST(Number, StaysWithinItsRange) {
    EXPECT_EQ(number_from_text<int>("1", 1, 5), 1);
    EXPECT_EQ(number_from_text<int>("5", 1, 5), 5);
    EXPECT_FALSE(number_from_text<int>("0", 1, 5));
    EXPECT_FALSE(number_from_text<int>("6", 1, 5));
    EXPECT_EQ(number_from_text<double>("0.5", 0, 1), 0.5);
    EXPECT_FALSE(number_from_text<double>("1.0000001", 0, 1));
}

TEST(Number, RefusalNamesTextAndRange) {
    try {
        read_number<int>("--tokens", "6\n4", 1, 99);
        FAIL() << "it was taken";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::wrong_use);
        EXPECT_STREQ(error.what(), "--tokens: '6?4' is not a whole number from 1 to 99");
    }
    EXPECT_EQ(no_number<double>("nan", 0, 1), "'nan' is not a number from 0 to 1");
    EXPECT_EQ(no_number<double>("x", 0), "'x' is not a number of at least 0");
    EXPECT_EQ(no_number<double>("x"), "'x' is not a number");
    EXPECT_EQ(no_number<int>(std::string(500, '9')).size(),
              std::string("'...' is not a whole number from -2147483648 to 2147483647").size() + 120);
    EXPECT_EQ(read_number<double>("alpha", "0.5", 0, 1), 0.5);
}

}  // namespace
}  // namespace keyhole::test_number
