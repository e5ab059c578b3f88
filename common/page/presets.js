// What Basics-Tutorial/pays.py calculates with. Made by build/page_data.py.
export const MODELS = {
 "ResNet-50": {
  "size": 102400000.0,
  "flops": 24600000000.0,
  "batch": 256,
  "examples": "images"
 },
 "GPT-2 small": {
  "size": 248000000.0,
  "flops": 744000000.0,
  "batch": 16384,
  "examples": "tokens"
 },
 "an 8B language model": {
  "size": 16060000000.0,
  "flops": 48180000000.0,
  "batch": 16384,
  "examples": "tokens"
 },
 "DLRM, whole tables": {
  "size": 96265600000.0,
  "flops": 14400000.0,
  "batch": 8192,
  "examples": "examples"
 },
 "DLRM, its rows": {
  "size": 118651904.0,
  "flops": 14400000.0,
  "batch": 8192,
  "examples": "examples"
 }
};
export const DEVICES = {
 "H100": 400000000000000.0,
 "A100": 125000000000000.0,
 "V100": 50000000000000.0
};
export const LINKS = {
 "1 Gbit/s": [
  1000000000.0,
  0.0001
 ],
 "10 Gbit/s": [
  10000000000.0,
  5e-05
 ],
 "100 Gbit/s": [
  100000000000.0,
  2e-05
 ],
 "400 Gbit/s": [
  400000000000.0,
  5e-06
 ],
 "NVLink": [
  3600000000000.0,
  5e-06
 ]
};
export const LONGEST = 2000;
